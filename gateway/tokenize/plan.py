"""Plain chats without running their template: what it puts around each turn is learned at load, and proven.

Conversations of watched texts are rendered, for every short order of roles and some long ones. Where the template prints each
content once and in order, and the text between two contents depends on nothing but their roles, that text is the plan. What the
template looks for in contents becomes a condition: a text that does not meet it is rendered. Then the plan is tried out on
contents with odd white space, scripts and markers, by text and by ids. If anything differs there is no plan for this template.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jinja2 import nodes

from gateway.errors import GatewayError, NoTokens
from gateway.tokenize.encode import Encoder
from gateway.tokenize.parity import CORPUS
from gateway.tokenize.segments import Cutter
from gateway.tokenize.template import ChatTemplate
from gateway.tokenize.watch import Looks, Watched

log = logging.getLogger(__name__)

_ROLES = ("user", "assistant")
_MOST_MESSAGES = 2_000  # 1 us each on the loop; longer chats are rendered
_LARGEST_NUMBER = 2  # in a template: a larger one may count messages or characters further than the probes go
# Those that ask a text by its own methods, where the watch sees it; `int` or `title`, say, do not.
_WATCHED_FILTERS = frozenset(
    ("count", "d", "default", "first", "items", "last", "length", "list", "lower", "replace", "string", "tojson", "trim", "upper")
)
_LONG = (7, 12, 41)  # turns of the user in the long probes
_RANDOM_PROBES = 60

Role = str | None  # None: before the first message, or behind the last
Gaps = dict[tuple[Role, Role], str]


class NoPlan(GatewayError):
    """This template can not be planned; the text says why."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What stands around a content, up to the next place where the text may be cut."""

    before: str
    after: str


class Plan:
    """The pieces of plain chats: system, user and assistant texts, the last one a user's, every option at its default."""

    def __init__(self, gaps: Gaps, cutter: Cutter, looks: Looks) -> None:
        """gaps: the text between two messages by their roles; each but the first holds a place to cut. Raises NoPlan."""
        self._looks = looks
        self._numbers: dict[Turn, int] = {}
        self._kinds: dict[tuple[Role, Role, Role], int] = {}
        ends = {pair: _cut_gap(gap, pair, cutter) for pair, gap in gaps.items()}
        for (previous, role), (follower_role, following) in itertools.product(ends, ends):
            if role is not None and role == follower_role:
                turn = Turn(ends[previous, role][1], ends[role, following][0])
                self._kinds[previous, role, following] = self._numbers.setdefault(turn, len(self._numbers))
        self.turns = tuple(self._numbers)
        self.ending = ends["user", None][1]

    def kinds(self, fields: Mapping[str, Any]) -> list[tuple[int, str]] | None:
        """For each message the number of its turn and its content; None where this body has to be rendered.

        The caller asks `admits` for contents it does not know. Fields beside the messages are the caller's business too.
        """
        messages = fields.get("messages")
        if type(messages) is not list or not messages or len(messages) > _MOST_MESSAGES:
            return None
        roles: list[Role] = []
        contents: list[str] = []
        for message in messages:
            if type(message) is not dict or len(message) != 2:
                return None
            role, content = message.get("role"), message.get("content")
            if type(role) is not str or type(content) is not str:
                return None
            roles.append(role)
            contents.append(content)
        kinds = [self._kinds.get(turn) for turn in zip([None, *roles[:-1]], roles, [*roles[1:], None], strict=True)]
        if None in kinds:
            return None
        return list(zip(cast(list[int], kinds), contents, strict=True))

    def admits(self, content: str) -> bool:
        """Whether the template does with this content what it did with those the plan was learned from."""
        return self._looks.admits(content)

    def text(self, kind: int, content: str) -> str:
        """One piece of the prompt."""
        turn = self.turns[kind]
        return f"{turn.before}{content}{turn.after}"


def learn_plan(template: ChatTemplate | None, encoder: Encoder, cutter: Cutter | None) -> Plan | None:
    """The plan of a template, proven; None where there is none."""
    if template is None or template.source is None or cutter is None:
        return None
    try:
        _refuse_what_can_not_be_watched(template.syntax())
        plan = _most_general(template, cutter)
        _prove(plan, template, encoder)
    except (NoPlan, NoTokens) as error:
        log.info("chat template has no plan reason=%s", error)
        return None
    return plan


def _most_general(template: ChatTemplate, cutter: Cutter) -> Plan:
    """A plan for as many orders of roles as the template takes: some insist on turns taken in turn, some on no system prompt."""
    reason = NoPlan("no order of roles is taken")
    for system, free in itertools.product((True, False), (True, False)):
        try:
            return _learned(template, cutter, _orders(system=system, free=free))
        except NoPlan as error:
            reason = error
    raise reason


def _orders(*, system: bool, free: bool) -> Iterable[tuple[str, ...]]:
    """Orders of roles that end with the user's turn: all short ones where `free`, some long ones in which turns alternate."""
    for length in range(1, 6):
        for front in itertools.product(_ROLES, repeat=length - 1):
            roles = (*front, "user")
            if free or (length % 2 and roles == _alternating(length)):
                yield from (roles, ("system", *roles)) if system else (roles,)
    for turns in _LONG:
        roles = _alternating(2 * turns - 1)
        yield from (roles, ("system", *roles)) if system else (roles,)


def _alternating(length: int) -> tuple[str, ...]:
    return tuple(_ROLES[number % 2] for number in range(length))


def _learned(template: ChatTemplate, cutter: Cutter, orders: Iterable[tuple[str, ...]]) -> Plan:
    looks, gaps = Looks(), Gaps()
    for roles in orders:
        marks = [f"\ue020{number}\ue021" for number in range(len(roles))]
        contents = [Watched(mark, looks) for mark in marks]
        try:
            text = template.plain(roles, contents)
        except NoTokens as error:
            raise NoPlan(f"{'-'.join(roles)} is refused: {error}") from error
        pairs = itertools.pairwise((None, *roles, None))
        for pair, gap in zip(pairs, _between(text, marks), strict=True):
            if gaps.setdefault(pair, gap) != gap:
                raise NoPlan(f"the text between {pair[0]} and {pair[1]} changes")
    if looks.unknown:
        raise NoPlan(f"contents are looked into by {', '.join(sorted(looks.unknown))}")
    return Plan(gaps, cutter, looks)


def _between(text: str, marks: Sequence[str]) -> list[str]:
    """The texts around the marks; raises NoPlan unless each mark stands once and in order."""
    gaps: list[str] = []
    for mark in marks:
        gap, found, text = text.partition(mark)
        if not found or "\ue020" in gap or mark in text:
            raise NoPlan("a content is left out, moved or repeated")
        gaps.append(gap)
    return [*gaps, text]


def _cut_gap(gap: str, pair: tuple[Role, Role], cutter: Cutter) -> tuple[str, str]:
    """The part that belongs to the turn in front, up to its end token, and the part of the turn behind."""
    if pair[0] is None:
        return "", gap
    end = cutter.first_end(gap)
    if end < 0:
        raise NoPlan(f"no end of turn between {pair[0]} and {pair[1]}")
    return gap[:end], gap[end:]


def _refuse_what_can_not_be_watched(tree: nodes.Template) -> None:
    """Raises NoPlan for parts of the language that hide what happens to a content, or that depend on more than messages."""
    hiding = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.Include, nodes.Import, nodes.FromImport)
    if next(tree.find_all(hiding), None) is not None:
        raise NoPlan("it uses macros or captured blocks")
    if any(name.name in {"strftime_now", "lipsum", "cycler", "joiner"} for name in tree.find_all(nodes.Name)):
        raise NoPlan("it reads the clock, or remembers")
    filters = {node.name for node in tree.find_all(nodes.Filter)} - _WATCHED_FILTERS
    if filters:
        raise NoPlan(f"it filters by {', '.join(sorted(filters))}")
    indents = {id(word.value) for word in tree.find_all(nodes.Keyword) if word.key == "indent"}
    for constant in tree.find_all(nodes.Const):
        if id(constant) not in indents and isinstance(constant.value, int | float) and abs(constant.value) > _LARGEST_NUMBER:
            raise NoPlan(f"it holds the number {constant.value}")
    for operand in tree.find_all(nodes.Operand):
        if operand.op in {"in", "notin"} and not isinstance(operand.expr, nodes.Name | nodes.Getattr | nodes.Getitem):
            if isinstance(operand.expr, nodes.List | nodes.Tuple):
                continue
            raise NoPlan("it looks for a content in something else")
    # Directly in an output the result of `~` can only be printed.
    printed = {id(node) for output in tree.find_all(nodes.Output) for node in output.nodes}
    if any(id(node) not in printed for node in tree.find_all(nodes.Concat)):
        raise NoPlan("it works on joined texts")


def _prove(plan: Plan, template: ChatTemplate, encoder: Encoder) -> None:
    """Raises NoPlan where text or ids of a probe differ from those of the whole way."""
    source = random.Random(3)
    contents = ["", " ", "\n", "a", " a b \n", "\n\n  x\t", "<", "{{ x }}", "\"\\&<>'", *CORPUS]
    contents += [f"{turn.before}{part}{turn.after}" for turn in plan.turns for part in ("", "x")]
    orders = list(_orders(system=True, free=True))
    probes = [(roles, (content,) * len(roles)) for content in contents for roles in orders[1:6]]
    for _ in range(_RANDOM_PROBES):
        roles = source.choice(orders)
        probes.append((roles, tuple(source.choice(contents) for _ in roles)))
    for roles, texts in probes:
        fields = {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]}
        kinds = plan.kinds(fields)
        if kinds is None or not all(map(plan.admits, texts)):
            continue
        pieces = [*(plan.text(kind, text) for kind, text in kinds), plan.ending]
        whole = template.render(fields["messages"])
        if "".join(pieces) != whole:
            raise NoPlan(f"the text differs for {'-'.join(roles)}")
        ids = encoder.encode_all([*pieces, whole], add_special_tokens=False)
        if not np.array_equal(np.concatenate(ids[:-1]), ids[-1]):
            raise NoPlan(f"the ids differ for {'-'.join(roles)}")
