"""What a template does with a content is noted, whichever way it does it."""

from __future__ import annotations

import pytest

from gateway.tokenize.template import ChatTemplate
from gateway.tokenize.watch import Looks, Watched


def looks(expression: str) -> Looks:
    """What a template with this expression over the content notes."""
    noted = Looks()
    template = ChatTemplate({"default": "{% set c = messages[0]['content'] %}{{ " + expression + " }}"}, {})
    template.plain(["user"], [Watched("mark", noted)])
    return noted


@pytest.mark.parametrize(
    "expression",
    ["c", "'a' + c", "c + 'a'", "('a' + c) + 'b'", "'a' ~ c ~ 'b'", "c is string", "c is none", "c is defined", "c == 1"],
)
def test_printing_is_no_look(expression: str) -> None:
    assert looks(expression) == Looks()


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("'</t>' in c", Looks(parts={"</t>"})),
        ("'</t>' not in c", Looks(parts={"</t>"})),
        ("c.startswith('<r>')", Looks(parts={"<r>"})),
        ("c.endswith(('x', 'y'))", Looks(parts={"x", "y"})),
        ("c == 'hi'", Looks(wholes={"hi"})),
        ("'hi' != c", Looks(wholes={"hi"})),
        ("c in ['hi', 'ho']", Looks(wholes={"hi", "ho"})),
        ("'x' if c else 'y'", Looks(wholes={""})),
        ("not c", Looks(wholes={""})),
        ("c | trim", Looks(edges={None})),
        ("c.strip()", Looks(edges={None})),
        ("c.lstrip('\\n')", Looks(edges={"\n"})),
        ("c.rstrip('\\n') + 'x'", Looks(edges={"\n"})),
    ],
)
def test_a_look_becomes_a_condition(expression: str, wanted: Looks) -> None:
    assert looks(expression) == wanted


@pytest.mark.parametrize(
    "expression",
    [
        "c | length",
        "c | upper",
        "c | lower",
        "c[0]",
        "c[:5]",
        "c.split('x')",
        "c.replace('x', 'y')",
        "c | replace('x', 'y')",
        "c.find('x')",
        "c.count('x')",
        "c | first",
        "c | list",
        "c | reverse",
        "c * 2",
        "'%s' % c",
        "'{}'.format(c)",
        "c < 'x'",
        "'x' > c",
        "c == messages[0]['content']",
        "'a' in c",  # which it does contain: another text may not
        "c.startswith('ma')",
        "c.startswith('x', 2)",
        "'x' in ('a' + c)",
        "('a' + c) | trim",
        "('a' + c) == 'ahi'",
        "('a' + c) | length",
        "{c: 1}",
        "c in {'x': 1}",
        "c.isdigit()",
        "c.encode()",
    ],
)
def test_every_other_look_is_not_understood(expression: str) -> None:
    assert looks(expression).unknown


def test_conditions_are_those_of_the_text() -> None:
    noted = Looks(parts={"</t>"}, wholes={"hi"}, edges={None, "x"})
    assert [noted.admits(text) for text in ("a", "hi there", "a </t", "")] == [True] * 4
    assert not any(noted.admits(text) for text in ("a </t> b", "hi", " a", "a\n", "xa", "ax"))
