"""Paths: what each of them does, and under which label it is counted."""

from __future__ import annotations

import pytest

from gateway.errors import ErrorShape, Refusal
from gateway.request import Kind
from gateway.routes import Local, Routes, errors_at, model_of

ROUTES = Routes(["/score", "/v1/audio/", "/v1/responses/input_tokens"])


@pytest.mark.parametrize(
    ("path", "kind", "label"),
    [
        ("/v1/chat/completions", Kind.CHAT, "chat"),
        ("/v1/completions", Kind.COMPLETION, "completion"),
        ("/v1/responses", Kind.RESPONSES, "responses"),
        ("/v1/responses/resp_1/cancel", Kind.STORED, "stored_response"),
        ("/v1/responses/input_tokens", Kind.PASS_THROUGH, "pass_through"),
        ("/v1/messages", Kind.MESSAGES, "messages"),
        ("/v1/messages/count_tokens", Kind.COUNT_TOKENS, "count_tokens"),
        ("/v1/embeddings", Kind.EMBEDDINGS, "embeddings"),
        ("/v1/rerank", Kind.RERANK, "rerank"),
        ("/rerank", Kind.RERANK, "rerank"),
        ("/v2/rerank", Kind.RERANK, "rerank"),
        ("/tokenize", Kind.TOKENIZE, "tokenize"),
        ("/v1/tokenize", Kind.TOKENIZE, "tokenize"),
        ("/detokenize", Kind.DETOKENIZE, "detokenize"),
        ("/generate", Kind.GENERATE, "generate"),
        ("/inference/v1/generate", Kind.TOKENS, "tokens"),
        ("/score", Kind.PASS_THROUGH, "pass_through"),
        ("/v1/audio/speech", Kind.PASS_THROUGH, "pass_through"),
    ],
)
def test_what_is_posted_goes_to_an_engine(path: str, kind: Kind, label: str) -> None:
    route = ROUTES.of(b"POST", path)
    assert (route.kind, route.name, route.local, route.needs_key) == (kind, label, None, True)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        (b"GET", "/v1/responses/resp_1"),
        (b"DELETE", "/v1/responses/resp_1"),
        (b"GET", "/v1/responses/resp_1/input_items"),
        (b"GET", "/v1/audio/voices"),
        (b"DELETE", "/v1/audio/voices/x"),
        (b"HEAD", "/score"),
    ],
)
def test_other_methods_go_there_where_they_mean_something(method: bytes, path: str) -> None:
    assert ROUTES.of(method, path).kind in (Kind.STORED, Kind.PASS_THROUGH)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        (b"GET", "/v1/messages", 405),
        (b"GET", "/generate", 405),
        (b"PUT", "/v1/responses/resp_1", 405),
        (b"POST", "/v1/responses/resp_1", 405),
        (b"GET", "/v1/responses/resp_1/cancel", 405),
        (b"POST", "/v1/models/m", 405),
        (b"GET", "/v1/models/", 404),
        (b"POST", "/v1/responses/", 404),
        (b"POST", "/v1/responses/../flush_cache", 404),
        (b"POST", "/abort_request", 404),
        (b"POST", "/flush_cache", 404),
        (b"POST", "/v1/load_lora_adapter", 404),
        (b"GET", "/metrics", 404),
        (b"POST", "/score/", 404),
        (b"POST", "/v1/audio/../../flush_cache", 404),
        (b"POST", "/v1/messages/", 404),
    ],
)
def test_everything_else_is_refused(method: bytes, path: str, status: int) -> None:
    with pytest.raises(Refusal) as caught:
        ROUTES.of(method, path)
    assert caught.value.status == status


def test_one_model_is_asked_by_its_name() -> None:
    route = ROUTES.of(b"GET", "/v1/models/org/name%20x")
    assert (route.local, route.name) == (Local.MODEL, "models")
    assert model_of("/v1/models/org/name%20x") == "org/name%20x"


def test_labels_are_a_closed_set() -> None:
    """FC-62: whatever is in the paths."""
    paths = ["/v1/models/%d", "/v1/responses/%d", "/v1/responses/%d/cancel", "/v1/audio/%d", "/%d"]
    labels = set()
    for number in range(50):
        for path in paths:
            try:
                labels.add(ROUTES.of(b"GET", path % number).name)
            except Refusal as refusal:
                labels.add(str(refusal.code))
    assert labels == {"models", "stored_response", "method_not_allowed", "pass_through", "unknown_path"}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_clients_of_messages_understand_their_own_errors(path: str) -> None:
    assert errors_at(path) is ROUTES.of(b"POST", path).errors is ErrorShape.ANTHROPIC
    assert errors_at("/v1/chat/completions") is errors_at("/nowhere") is ErrorShape.OPENAI
