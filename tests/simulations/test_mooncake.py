"""The Mooncake reader: what it takes, what it refuses and how it says so."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simulations.errors import TraceError
from simulations.traces.characterize import lru_hit_rate
from simulations.traces.columns import Trace
from simulations.traces.mooncake import read_mooncake

GOOD = '{"timestamp": 1, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}'


def write(folder: Path, *lines: str) -> Path:
    path = folder / "t.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_columns_hold_what_the_rows_say(tiny: Trace) -> None:
    assert len(tiny) == 9
    assert tiny.block_tokens == 512
    assert tiny.arrival_s.tolist() == [0, 0, 0, 3, 3, 3, 6, 6, 30]
    assert tiny.input_tokens.sum() == 18_149
    assert tiny.output_tokens.tolist() == [40, 1, 12, 30, 8, 3, 20, 50, 2]
    assert tiny.ids(4).tolist() == [4, 7]
    assert len(tiny.block_ids) == tiny.block_offsets[-1] == 40


def test_gzip_gives_the_same_trace_and_digest(tiny_path: Path, tmp_path: Path, tiny: Trace) -> None:
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(tiny_path.read_bytes()))
    trace = read_mooncake(packed)
    assert trace.digest == tiny.digest
    assert trace.block_ids.tolist() == tiny.block_ids.tolist()


def test_rows_are_sorted_by_arrival_and_ties_keep_the_order_of_the_file(tmp_path: Path) -> None:
    rows = [f'{{"timestamp": {ms}, "input_length": 5, "output_length": {out}, "hash_ids": [{out}]}}' for ms, out in
            ((20, 1), (10, 2), (20, 3), (10, 4))]  # fmt: skip
    trace = read_mooncake(write(tmp_path, *rows))
    assert trace.output_tokens.tolist() == [2, 4, 1, 3]
    assert trace.block_ids.tolist() == [2, 4, 1, 3]


def test_a_recorded_file_says_its_block_size(tmp_path: Path) -> None:
    trace = read_mooncake(
        write(tmp_path, '{"timestamp":0,"input_length":33,"output_length":1,"block_size":16,"hash_ids":[7,8,9]}')
    )
    assert trace.block_tokens == 16


def test_ids_of_any_size_become_dense(tmp_path: Path) -> None:
    big = 2**63 - 1
    row = f'{{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [{big}, -5]}}'
    assert read_mooncake(write(tmp_path, row, GOOD)).dense_ids().tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"input_length": 5', "not a JSON object"),
        ("[1, 2]", "not a JSON object, got [1, 2]"),
        (GOOD.replace('"timestamp": 1, ', ""), "timestamp is missing"),
        (GOOD.replace('"timestamp": 1', '"timestamp": "x"'), "timestamp must be milliseconds of at least 0, got 'x'"),
        (GOOD.replace('"timestamp": 1', '"timestamp": -1'), "timestamp must be milliseconds of at least 0, got -1"),
        (GOOD.replace("600", "0"), "input_length must be a whole number of at least 1, got 0"),
        (GOOD.replace("600", "true"), "input_length must be a whole number of at least 1, got True"),
        (
            GOOD.replace('"output_length": 2', '"output_length": 1.5'),
            "output_length must be a whole number of at least 1, got 1.5",
        ),
        (GOOD.replace("[1, 2]", "7"), "hash_ids must be a list, got 7"),
        (GOOD.replace("[1, 2]", '[1, "a"]'), "hash_ids[1] must be a whole number below 2**63, got 'a'"),
        (GOOD.replace("[1, 2]", "[1, 18446744073709551615]"), "hash_ids[1] must be a whole number below 2**63"),
        (GOOD.replace("[1, 2]", "[1]"), "hash_ids must have 2 ids for input_length 600 at 512 tokens a block, got 1"),
        (GOOD.replace("[1, 2]", "[3, 2]"), "hash_ids are not chained: id 2 follows another id than it did before"),
        (GOOD.replace("}", ', "block_size": 16}'), "block_size must stay 512 through the file, got 16"),
    ],
)
def test_an_error_names_file_line_field_and_value(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_mooncake(write(tmp_path, GOOD, "", line))
    assert str(caught.value).startswith("t.jsonl:3: ")
    assert complaint in str(caught.value)


def test_a_file_that_is_not_there_or_empty_or_cut_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"gone\.jsonl: cannot be read"):
        read_mooncake(tmp_path / "gone.jsonl")
    with pytest.raises(TraceError, match=r"t\.jsonl: no request"):
        read_mooncake(write(tmp_path, ""))
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(GOOD.encode())[:-9])
    with pytest.raises(TraceError, match=r"cut\.gz: cannot be read"):
        read_mooncake(cut)


def test_hit_rate_of_the_tiny_trace_by_hand(tiny: Trace) -> None:
    # Found: row 1 -> 512; row 3 -> 1,024; row 4 -> 512; row 5 all 1,100; row 7 -> 1,536; row 8 -> 512.
    assert lru_hit_rate(tiny) == pytest.approx((512 + 1024 + 512 + 1100 + 1536 + 512) / 18_149)


def test_a_small_cache_evicts_tails_first(trace_of: Callable[..., Trace]) -> None:
    trace = trace_of((0, 1536, 1, [1, 2, 3]), (1, 512, 1, [9]), (2, 1536, 1, [1, 2, 3]))
    assert lru_hit_rate(trace, 3) == pytest.approx(1024 / 3584)


@pytest.mark.parametrize(
    ("name", "rows", "input_tokens", "output_tokens", "unlimited", "blocks_875"),
    [
        ("mooncake_conversation_first40min.jsonl", 7_851, 97_571_920, 2_724_903, 0.3577, 0.0439),
        ("mooncake_synthetic_first11min.jsonl", 2_597, 34_256_229, 477_714, 0.4373, 0.0185),
        ("mooncake_arxiv_toolagent_mix_first2min.jsonl", 643, 6_351_561, 130_299, 0.3486, 0.2909),
    ],
)
def test_golden_numbers_of_recorded_traces(
    recorded: Callable[[str], Path],
    name: str,
    rows: int,
    input_tokens: int,
    output_tokens: int,
    unlimited: float,
    blocks_875: float,
) -> None:
    trace = read_mooncake(recorded(name))
    assert (len(trace), trace.input_tokens.sum(), trace.output_tokens.sum()) == (rows, input_tokens, output_tokens)
    assert lru_hit_rate(trace) == pytest.approx(unlimited, abs=5e-5)
    assert lru_hit_rate(trace, 875) == pytest.approx(blocks_875, abs=5e-5)


RECORDED = {"output_length": 20, "block_size": 16, "e2e_ms": 500.0, "ttft_ms": None, "replica": "r", "policy": "cost"}


def recorded_row(ms: float, tokens: int, ids: list[int], **fields: object) -> str:
    return json.dumps({**RECORDED, "timestamp": ms, "input_length": tokens, "hash_ids": ids, "session_id": None, **fields})


def answers_of(trace: Trace) -> list[list[int]]:
    assert trace.answer_starts is not None
    assert trace.answer_blocks is not None
    pairs = zip(trace.answer_starts.tolist(), trace.answer_blocks.tolist(), strict=True)
    return [trace.block_ids[start : start + count].tolist() for start, count in pairs]


def test_sessions_are_numbered_and_absent_where_no_row_names_one(tmp_path: Path, tiny: Trace) -> None:
    rows = [recorded_row(ms, 5, [ms], session_id=name) for ms, name in ((0, "a"), (1, None), (2, "b"), (3, "a"))]
    trace = read_mooncake(write(tmp_path, *rows))
    assert trace.sessions is not None
    assert trace.sessions.tolist() == [0, -1, 1, 0]
    assert tiny.sessions is None
    with pytest.raises(TraceError, match=r"session_id must be a text or a whole number, got 1\.5"):
        read_mooncake(write(tmp_path, recorded_row(0, 5, [1], session_id=1.5)))


def test_an_answers_blocks_are_those_the_follow_up_names(tmp_path: Path) -> None:
    """40 tokens and 20 generated: KV of 59, so three full blocks, of which the prompt filled two."""
    first = recorded_row(0, 40, [1, 2, 90])
    follow_up = recorded_row(600, 80, [1, 2, 3, 4, 5])
    assert answers_of(read_mooncake(write(tmp_path, first, follow_up))) == [[3], []]
    for other in (
        recorded_row(400, 80, [1, 2, 3, 4, 5]),  # came before the answer was there
        recorded_row(600, 80, [1, 7, 3, 4, 5]),  # another prompt
        recorded_row(600, 80, [1, 2, 3, 4, 5], session_id="x"),  # another session
        recorded_row(600, 40, [1, 2, 91]),  # the same again, which brings nothing back
    ):
        assert answers_of(read_mooncake(write(tmp_path, first, other))) == [[], []]


def test_a_slice_has_no_answers_from_beyond_its_end(tmp_path: Path) -> None:
    trace = read_mooncake(write(tmp_path, recorded_row(0, 40, [1, 2, 90]), recorded_row(600, 80, [1, 2, 3, 4, 5])))
    assert answers_of(trace.head(1)) == [[]]


def test_traces_that_do_not_say_when_answers_ended_have_none(tiny: Trace) -> None:
    assert tiny.answer_starts is None
