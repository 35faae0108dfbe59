"""What passes through: listed paths only, for the model that the body, the form or the query names."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.apis.passing import ADMINISTRATION, Found, Passing, check_entries, find_model
from gateway.check import check_settings
from gateway.config import PASS_THROUGH
from gateway.errors import ConfigError, Refusal
from tests.fakes.dataplane import settings

FORM = b"multipart/form-data; boundary=b1"
FILE = b'Content-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: audio/wav\r\n\r\n'


def part(head: bytes, content: bytes) -> bytes:
    return b"--b1\r\n" + head + content + b"\r\n"


def named(name: bytes, content: bytes) -> bytes:
    return part(b'Content-Disposition: form-data; name="%s"\r\n\r\n' % name, content)


def test_the_page_for_operators_shows_the_default_list() -> None:
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
    shown = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    assert tuple(shown["pass_through"]) == PASS_THROUGH


def test_the_default_list_is_allowed_and_administers_nothing() -> None:
    check_entries(PASS_THROUGH)
    assert not any(map(Passing(PASS_THROUGH).admits, ADMINISTRATION))


@pytest.mark.parametrize(
    "entry", [*ADMINISTRATION, "/v1/", "/inference/v1/", "/mock/restart", "/sleep/", "/metrics/x", "/hicache/"]
)
def test_administration_can_not_be_listed(entry: str) -> None:
    """Not by its path, not by what is below it, not by what is above it."""
    with pytest.raises(ConfigError, match=r"pass_through\[1\]: .* administers engines"):
        check_entries(["/score", entry])


@pytest.mark.parametrize("entry", ["", "/", "score", "/a b", "/a?b", "/a/../b", "//a", "/a//", "/%61", "*"])
def test_an_entry_is_a_path(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"pass_through\[0\]"):
        check_entries([entry])


def test_wrong_settings_are_refused_by_key_and_value() -> None:
    replicas = [{"url": "http://a:1"}]
    with pytest.raises(ConfigError, match=r"pass_through\[0\]: '/flush_cache'"):
        check_settings(settings(replicas=replicas, pass_through=["/flush_cache"]))
    for aliases in ({"a": "b", "b": "c"}, {"a": ""}, {"": "c"}, {"a": "a"}):
        with pytest.raises(ConfigError, match=r"models\.aliases: "):
            check_settings(settings(replicas=replicas, models={"aliases": aliases}))
    check_settings(settings(replicas=replicas, models={"aliases": {"a": "c", "b": "c"}}))


@pytest.mark.parametrize(
    ("path", "admitted"),
    [
        ("/score", True),
        ("/score/", False),
        ("/score/x", False),
        ("/v1/audio/speech", True),
        ("/v1/audio/voices/a%20b", True),
        ("/v1/audio", False),
        ("/v1/audio/../../flush_cache", False),
        ("/v1/audio/./x", False),
        ("/v1/audio/..", False),
        ("/v1/audio//x", False),
        ("/v1/audio/%2e%2e/%2E./flush_cache", False),
        ("/v1/audio/..%2fx", False),
        ("/v1/audio/..%5cx", False),
        ("/v1/audio/..\\x", False),
        ("/v1/audio/%00", False),
        ("/V1/audio/speech", False),
    ],
)
def test_a_path_passes_as_it_is_listed_and_only_in_one_reading(path: str, admitted: bool) -> None:
    assert Passing(["/score", "/v1/audio/"]).admits(path) is admitted


@pytest.mark.parametrize(
    ("content_type", "target", "body", "model"),
    [
        (b"application/json", b"/x", b'{"model":"m"}', "m"),
        (b"application/json; charset=utf-8", b"/x", b' \n{"a":{"model":"no"},"model":"m"}', "m"),
        (None, b"/x", b'{"model":"m"}', "m"),
        (b"application/json", b"/x", b'{"model":3}', None),
        (b"application/json", b"/x", b'{"model":', None),
        (b"application/json", b"/x", b'[{"model":"no"}]', None),
        (b"application/octet-stream", b"/x", b"\x00model", None),
        (FORM, b"/x", named(b"model", b"m") + b"--b1--\r\n", "m"),
        (b'Multipart/Form-Data; charset=x; boundary="b1"', b"/x", part(FILE, b"RIFF") + named(b"model", b"m") + b"--b1--", "m"),
        (FORM, b"/x", part(FILE, b'\r\nname="model"\r\n\r\nno') + b"--b1--", None),
        (FORM, b"/x", named(b"a", b'\r\n--b2\r\nContent-Disposition: form-data; name="model"\r\n\r\nno') + b"--b1--", None),
        (FORM, b"/x", named(b"other", b"x") + b"--b1--\r\n" + named(b"model", b"behind the end") + b"--b1--", None),
        (FORM, b"/x", b'--b1\r\nContent-Disposition: form-data; name="model"\r\n\r\nno end', None),
        (FORM, b"/x", named(b"model", b"\xff") + b"--b1--", None),
        (FORM, b"/x", named(b"model", b"x" * 501) + b"--b1--", None),
        (FORM, b"/x", b"", None),
        (b"multipart/form-data", b"/x", named(b"model", b"m"), None),
        (None, b"/x?a=1&model=m%2Fx", b"", "m/x"),
        (None, b"/x?model=", b"", None),
        (b"application/json", b"/x?model=q", b'{"model":"m"}', "m"),
    ],
)
def test_the_model_is_found(content_type: bytes | None, target: bytes, body: bytes, model: str | None) -> None:
    assert find_model(content_type, target, body).model == model


def test_a_form_tells_where_the_name_stands() -> None:
    body = part(FILE, b"RIFF\r\n--b1x") + named(b"model", b"m/x") + b"--b1--"
    found = find_model(FORM, b"/x", body)
    assert found.span is not None
    assert (found.model, body[slice(*found.span)]) == ("m/x", b"m/x")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_form_of_some_kind(data: bytes) -> None:
    body = data.replace(b"X", b"\r\n--b1").replace(b"Y", b'name="model"\r\n\r\n')
    found = find_model(FORM, b"/x", body)
    assert found == Found() or (found.span is not None and body[slice(*found.span)].decode() == found.model)


def test_a_body_of_very_many_parts_is_refused_before_it_is_read() -> None:
    with pytest.raises(Refusal, match="too many parts"):
        find_model(None, b"/x", b'{"a":[' + b"{}," * 1_300_000 + b"1]}")
