"""Token lists of a real vLLM with SmolLM2, against ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import NoTokens
from gateway.tokenize import reasons
from gateway.tokenize.folder import model_folder
from gateway.tokenize.prompt import Tokenizer

LINES = [json.loads(line) for line in (Path(__file__).parents[2] / "data" / "smollm2_chat_tokens.jsonl").read_text().splitlines()]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    folder = model_folder("smollm2")
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"no SmolLM2 folder at {folder}: run `trunkline model fetch smollm2`")
    return Tokenizer.load(folder)


@pytest.mark.parametrize("line", LINES, ids=[f"{line['id']} {line['note']}" for line in LINES])
def test_tokens_equal_the_engines(smollm2: Tokenizer, line: dict[str, Any]) -> None:
    """FC-22: the same list of ids for the same body, and a refusal where the engine refuses."""
    tokenize = smollm2.chat if line["kind"] == "chat" else smollm2.completion
    if line["status"] != 200:
        with pytest.raises(NoTokens) as refused:
            tokenize(line["body"])
        assert refused.value.reason == reasons.TEMPLATE
        return
    assert tokenize(line["body"]).tolist() == line["token_ids"]


def test_smollm2_runs_on_the_proven_fast_encoder(smollm2: Tokenizer) -> None:
    assert (smollm2.encoder_name, smollm2.vocab_size, smollm2.bos, smollm2.eos) == ("fastokens", 49_152, 1, 2)


def test_decoding_gives_the_text_back(smollm2: Tokenizer) -> None:
    text = "naïve 你好 🎉\r\n\t 123 <|im_end|>"
    ids = smollm2.text(text).tolist()
    assert smollm2.decode(ids) == text
    assert smollm2.decode(ids, skip_special_tokens=True) == text.removesuffix("<|im_end|>")
