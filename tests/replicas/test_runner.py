"""The runner: whatever way a prompt is cut, cached, placed or batched, the answer is the same."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch

from replicas import paged
from replicas.errors import ModelError, ReplicaError
from replicas.models.load import tiny_model
from replicas.runner import TorchRunner, load_runner
from replicas.step import Slice
from tests.fakes.llama import greedy, smollm2_or_skip

PROMPT = [random.Random(1).randrange(17, 49_152) for _ in range(100)]
BLOCK = 16
COUNT = 24


@pytest.fixture(scope="module")
def runner() -> TorchRunner:
    runner = TorchRunner(tiny_model())
    runner.allocate(64, BLOCK)
    return runner


@pytest.fixture(scope="module")
def whole(runner: TorchRunner) -> list[int]:
    """The answer to PROMPT, computed in one piece on blocks in order."""
    return greedy(runner, PROMPT, range(8), COUNT)


def last_logits(runner: TorchRunner, tokens: list[int], blocks: list[int], cuts: list[int]) -> torch.Tensor:
    for start, end in pairwise([0, *cuts, len(tokens)]):
        logits = runner.step([Slice(tokens[start:end], start, blocks, True)])
    return logits[0]


def test_the_answer_follows_the_prompt(runner: TorchRunner, whole: list[int]) -> None:
    assert len(set(whole)) > COUNT // 2
    assert greedy(runner, [18, *PROMPT[1:]], range(8), COUNT) != whole


@pytest.mark.parametrize("chunk", [1, 5, 16, 33, 99])
def test_chunked_equals_whole(runner: TorchRunner, whole: list[int], chunk: int) -> None:
    assert greedy(runner, PROMPT, range(10, 18), COUNT, chunk=chunk) == whole


@pytest.mark.parametrize("cuts", [[1], [16], [50], [99], [16, 17, 64], [98, 99]])
def test_logits_do_not_depend_on_the_cuts(runner: TorchRunner, cuts: list[int]) -> None:
    expected = last_logits(runner, PROMPT, list(range(7)), [])
    torch.testing.assert_close(last_logits(runner, PROMPT, list(range(20, 27)), cuts), expected, atol=1e-4, rtol=0)


def test_a_cached_prefix_of_another_sequence_equals_computing_it(runner: TorchRunner, whole: list[int]) -> None:
    other = [*PROMPT[: 3 * BLOCK], *range(100, 150)]
    runner.step([Slice(other, 0, [30, 31, 32, 33, 34, 35, 36], False)])
    assert greedy(runner, PROMPT, [30, 31, 32, 40, 41, 42, 43, 44], COUNT, cached=3 * BLOCK) == whole
    # And the sequence whose blocks were shared still has all of its own.
    expected = last_logits(runner, [*other, 7], list(range(50, 57)), [])
    reused = runner.step([Slice([7], len(other), [30, 31, 32, 33, 34, 35, 36], True)])[0]
    torch.testing.assert_close(reused, expected, atol=1e-4, rtol=0)


def test_a_wholly_cached_prompt_needs_only_its_last_token(runner: TorchRunner, whole: list[int]) -> None:
    runner.step([Slice(PROMPT, 0, range(8), False)])
    assert greedy(runner, PROMPT, range(8), COUNT, cached=len(PROMPT) - 1) == whole


def test_shuffled_and_used_blocks_equal_fresh_ones_in_order(runner: TorchRunner, whole: list[int]) -> None:
    runner.step([Slice(list(range(500, 628)), 0, [9, 3, 60, 1, 44, 17, 8, 2], False)])
    assert greedy(runner, PROMPT, [60, 2, 9, 17, 1, 44, 3, 8], COUNT) == whole


def test_more_blocks_than_needed_change_nothing(runner: TorchRunner, whole: list[int]) -> None:
    assert greedy(runner, PROMPT, range(20), COUNT) == whole


@pytest.mark.parametrize("block_tokens", [1, 7, 32, 256])
def test_every_block_size_gives_the_same(whole: list[int], block_tokens: int) -> None:
    runner = TorchRunner(tiny_model())
    blocks = list(range(127 // block_tokens + 1))
    runner.allocate(len(blocks), block_tokens)
    assert greedy(runner, PROMPT, blocks[::-1], COUNT, chunk=37) == whole


@pytest.mark.parametrize("gathered_key_bytes", [1, 30_000, 1 << 20])
def test_a_mixed_batch_equals_separate_steps(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch, gathered_key_bytes: int
) -> None:
    """Decodes of unlike lengths, a first chunk, a later chunk and a single first token, with decodes grouped and not."""
    monkeypatch.setattr(paged, "_GATHERED_KEY_BYTES", gathered_key_bytes)
    lengths_cached = [40, 1, 90, 0, 41, 33, 100, 0]
    lengths_new = [1, 1, 1, 50, 1, 30, 1, 1]
    sequences = [[random.Random(seed).randrange(17, 49_152) for _ in range(130)] for seed in range(8)]
    slices = []
    for number, (cached, new) in enumerate(zip(lengths_cached, lengths_new, strict=True)):
        blocks = [number * 8 + place for place in (3, 0, 6, 1, 5, 2, 7, 4)]
        if cached:
            runner.step([Slice(sequences[number][:cached], 0, blocks, False)])
        slices.append(Slice(sequences[number][cached : cached + new], cached, blocks, number != 5))
    together = runner.step(slices)
    separate = torch.cat([runner.step([part]) for part in slices])
    assert together.shape == (7, runner.vocab_size)
    torch.testing.assert_close(together, separate, atol=1e-4, rtol=0)


def test_a_step_may_want_no_logits_or_be_empty(runner: TorchRunner) -> None:
    assert runner.step([Slice([17, 18], 0, [0], False)]).shape == (0, runner.vocab_size)
    assert runner.step([]).shape == (0, runner.vocab_size)


def test_logits_may_be_changed_in_place(runner: TorchRunner) -> None:
    logits = runner.step([Slice([17, 18], 0, [0], True)])
    assert logits.dtype == torch.float32
    logits.div_(2.0)


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        (Slice([5] * 17, 0, [0], True), "17 tokens from position 0 has 1 blocks of 16"),
        (Slice([5], 16, [0], True), "1 tokens from position 16 has 1 blocks"),
        (Slice([], 0, [0], True), "0 tokens"),
        (Slice([5], 0, [64], True), "block 64"),
        (Slice([5], 0, [-1], True), "block -1"),
        (Slice([5], 8192, [0] * 513, True), "position 8192 is beyond"),
    ],
)
def test_a_slice_that_cannot_be_computed_is_refused(runner: TorchRunner, part: Slice, complaint: str) -> None:
    with pytest.raises(ReplicaError, match=complaint):
        runner.step([part])


def test_step_before_allocate_is_refused() -> None:
    with pytest.raises(ReplicaError, match="before allocate"):
        TorchRunner(tiny_model()).step([Slice([5], 0, [0], True)])


def test_a_pool_of_no_blocks_is_refused() -> None:
    with pytest.raises(ReplicaError, match="got 0 and 16"):
        TorchRunner(tiny_model()).allocate(0, 16)


def test_the_runner_states_what_the_engine_must_know(runner: TorchRunner) -> None:
    assert (runner.vocab_size, runner.max_context, runner.eos_token_ids) == (49_152, 8192, {2})
    assert runner.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4


def test_what_cannot_be_loaded_is_named() -> None:
    with pytest.raises(ModelError, match="'no/such/folder'"):
        load_runner("no/such/folder")
    with pytest.raises(ModelError, match="'int4'"):
        load_runner("tiny", dtype="int4")
    with pytest.raises(ReplicaError, match="threads must be at least 1, got 0"):
        load_runner("tiny", threads=0)


@pytest.mark.model
def test_the_real_model_knows_paris_whole_chunked_and_cached() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2_or_skip() / "tokenizer.json"))
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    prompt = tokenizer.encode(system + question, add_special_tokens=False).ids
    runner = load_runner("smollm2")
    runner.allocate(16, BLOCK)
    answers = [
        greedy(runner, prompt, [0, 1, 2], 8),
        greedy(runner, prompt, [9, 4, 7], 8, chunk=10),
        greedy(runner, prompt, [0, 1, 12], 8, cached=2 * BLOCK),
    ]
    assert tokenizer.decode(answers[0], skip_special_tokens=False) == "The capital of France is Paris.<|im_end|>"
    assert answers[1:] == answers[:1] * 2
