"""The real SmolLM2 behind the gateway: what it says, and that the gateway changes none of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.fleet import Fleet

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Iterator[Fleet]:
    """One replica with the real weights."""
    running = Fleet(tmp_path_factory.mktemp("real"), replicas=1, model="smollm2")
    yield running
    running.close()


def test_the_answer_is_right_and_the_same_through_the_gateway(fleet: Fleet) -> None:
    with fleet.client() as through, fleet.client(fleet.url(0)) as direct:
        answers = [
            client.chat.completions.create(model="m", messages=QUESTION, max_tokens=12, temperature=0)  # type: ignore[call-overload]
            for client in (through, direct)
        ]
        stream = through.chat.completions.create(
            model="m",
            messages=QUESTION,
            max_tokens=12,
            temperature=0,
            stream=True,  # type: ignore[call-overload]
        )
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    texts = [answer.choices[0].message.content for answer in answers]
    assert texts[0] == texts[1] == streamed
    assert "Paris" in texts[0]
    assert answers[0].choices[0].finish_reason == "stop"


def test_the_engine_reports_exactly_the_cached_tokens_that_were_predicted(fleet: Fleet) -> None:
    long = [{"role": "user", "content": "Please tell me, in one short sentence, what a library help desk does all day long."}]
    with fleet.client() as client:
        for _ in range(2):
            client.chat.completions.create(model="m", messages=long, max_tokens=2, temperature=0)  # type: ignore[call-overload]
    again, first = fleet.receipts(2)
    assert first["predicted_cached_tokens"] == first["realised_cached_tokens"]
    assert again["predicted_cached_tokens"] == again["realised_cached_tokens"] > 0
    assert again["predicted_cached_tokens"] % 16 == 0
