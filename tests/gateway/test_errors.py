"""Errors in the shapes that clients understand."""

from __future__ import annotations

import orjson
import pytest

from gateway.errors import ErrorShape, Refusal


def test_the_shape_of_openai() -> None:
    refusal = Refusal(404, "no", param="model", code="model_not_found")
    wanted = {"message": "no", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
    assert orjson.loads(refusal.body()) == {"error": wanted}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_the_shape_of_anthropic(status: int, kind: str) -> None:
    refusal = Refusal(status, "no", kind="x", code="y", shape=ErrorShape.ANTHROPIC)
    assert orjson.loads(refusal.body()) == {"type": "error", "error": {"type": kind, "message": "no"}}
