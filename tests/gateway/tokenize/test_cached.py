"""Whatever is remembered and whichever caches are on, ids are those of the whole prompt."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import NoTokens
from gateway.tokenize.cached import CachedTokenizer
from gateway.tokenize.folder import model_folder
from gateway.tokenize.prompt import CHAT_FIELDS, Tokenizer
from tests.fakes.tokenizer_folder import BOS, EOS, write_tokenizer_folder
from tests.gateway.tokenize.test_plan import THINKING, TRIMMED
from tests.gateway.tokenize.test_template import BOS_AND_ROLES, CHATML, PARTS, TOOLS

SWITCHES = [dict(zip(("segments", "plan", "lift"), values, strict=True)) for values in itertools.product((True, False), repeat=3)]
LINES = [json.loads(line) for line in (Path(__file__).parents[2] / "data" / "smollm2_chat_tokens.jsonl").read_text().splitlines()]
LONG = "hello the user, é你🎉 \n" * 150


def ids_of(cached: CachedTokenizer, raw: bytes, *, chat: bool = True) -> list[int] | str:
    """The ids of a body through the caches, as the loop gets them; or the reason why there are none."""
    fields = orjson.loads(raw) if cached.lifted is None else cached.lifted.parse(raw)
    try:
        draft = cached.planned(fields) if chat else None
        if draft is None:
            draft = cached.cut(cached.read(fields, chat=chat))
        if draft.holes:
            for hole, ids in zip(draft.holes, cached.encode(draft.holes), strict=True):
                draft.parts[hole.slot] = ids
                cached.remember(hole, ids)
        result: list[int] = cached.joined(draft).tolist()
    except NoTokens as error:
        return error.reason
    return result


def whole(tokenizer: Tokenizer, raw: bytes, *, chat: bool = True) -> list[int] | str:
    try:
        result: list[int] = (tokenizer.chat if chat else tokenizer.completion)(orjson.loads(raw)).tolist()
    except NoTokens as error:
        return error.reason
    return result


def body(*turns: tuple[str, Any], **fields: Any) -> bytes:
    return orjson.dumps({"messages": [{"role": role, "content": content} for role, content in turns], **fields})


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_tokenizer_folder(tmp_path_factory.mktemp("cached"), template=CHATML))


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    templates = {"chatml": CHATML, "tools": TOOLS, "bos": BOS_AND_ROLES, "parts": PARTS, "thinking": THINKING, "trimmed": TRIMMED}
    return {
        name: Tokenizer.load(write_tokenizer_folder(tmp_path_factory.mktemp(name), template=template, adds_bos=name == "bos"))
        for name, template in templates.items()
    }


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    folder = model_folder("smollm2")
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"no SmolLM2 folder at {folder}: run `trunkline model fetch smollm2`")
    return Tokenizer.load(folder)


@pytest.mark.model
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_ids_are_the_engines_with_every_combination_of_caches(smollm2: Tokenizer, switches: dict[str, bool]) -> None:
    """FC-22: the lists a real engine reported, asked for twice, the second time out of what was remembered."""
    cached = CachedTokenizer(smollm2, **switches)
    assert cached.caches == tuple(name for name in ("plan", "segments", "lift") if switches[name])
    for line in LINES * 2:
        wanted = line["token_ids"] if line["status"] == 200 else "template"
        assert ids_of(cached, orjson.dumps(line["body"]), chat=line["kind"] == "chat") == wanted, line["note"]


def test_a_growing_chat_encodes_only_its_new_turns(chatml: Tokenizer) -> None:
    cached = CachedTokenizer(chatml)
    turns = [("system", LONG)]
    for number in range(6):
        turns.append(("user", f"hello {number}"))
        assert ids_of(cached, body(*turns)) == whole(chatml, body(*turns))
        turns.append(("assistant", f"{LONG} {number}"))
    assert cached.counts.misses == {"plan": 12, "segments": 0}
    assert cached.lifted is not None and cached.lifted.hits == 5


def test_chats_with_tools_share_their_segments(chatml: Tokenizer) -> None:
    cached = CachedTokenizer(chatml)
    tools = [{"type": "function", "function": {"name": "w"}}]
    for number in range(3):
        raw = body(("system", LONG), ("user", [{"type": "text", "text": f"hello {number}"}]), tools=tools)
        assert ids_of(cached, raw) == whole(chatml, raw)
    assert cached.counts.misses["segments"] == 2 + 3
    assert cached.counts.hits["segments"] == 2 * 2


@pytest.mark.parametrize("name", sorted(CHAT_FIELDS))
def test_a_field_that_changes_the_prompt_keeps_the_plan_out(chatml: Tokenizer, name: str) -> None:
    """FC-22: each of them, with a value that the template or an engine takes and with one that it does not."""
    cached = CachedTokenizer(chatml)
    plain: tuple[Any, ...] = (None, True, False, 1, "x", [], {}, [5, 6])
    values = (*plain, {"add_generation_prompt": False}, [{"function": {"name": "w"}}])
    ids_of(cached, body(("user", "hello")))
    for value in values:
        raw = body(("user", "hello"), **{name: value})
        assert ids_of(cached, raw) == whole(chatml, raw)
        assert cached.planned(orjson.loads(raw)) is None


def test_every_field_that_tokenizing_reads_is_known_to_keep_the_plan_out(chatml: Tokenizer) -> None:
    """A field added to the tokenizer and not to the list would be overlooked by the plan."""

    class Noting(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            asked.add(key)
            return super().get(key, default)

        def __getitem__(self, key: str) -> Any:
            asked.add(key)
            return super().__getitem__(key)

    asked: set[str] = set()
    chatml.chat(Noting(orjson.loads(body(("user", "hello")))))
    assert asked - {"messages"} == CHAT_FIELDS


@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("special", [None, True, False])
def test_completions_get_their_markers(tmp_path: Path, adds_bos: bool, special: bool | None) -> None:
    """FC-23: with segments as without."""
    tokenizer = Tokenizer.load(write_tokenizer_folder(tmp_path, template=None, adds_bos=adds_bos))
    cached = CachedTokenizer(tokenizer)
    assert cached.caches == ("segments", "lift")
    for prompt in ("", "hello", f"a{EOS}b{EOS}", f"{BOS}a", ["hello", "hell"], [5, 6], [[5, 6], [5]], [], None):
        raw = orjson.dumps({"prompt": prompt} if special is None else {"prompt": prompt, "add_special_tokens": special})
        assert ids_of(cached, raw, chat=False) == whole(tokenizer, raw, chat=False)
        assert ids_of(cached, raw, chat=False) == whole(tokenizer, raw, chat=False)


def test_under_pressure_ids_stay_right_and_memory_bounded(chatml: Tokenizer) -> None:
    """Each chat pushes out what the one before left."""
    cached = CachedTokenizer(chatml, budget_mib=1)
    assert cached.lifted is not None
    for number in range(120):
        raw = body(("system", f"{number % 40} {LONG}"), ("user", f"hello {number}"), ("assistant", LONG), ("user", str(number)))
        assert ids_of(cached, raw) == whole(chatml, raw)
        assert cached.cache.bytes <= 512 * 1024 and cached.lifted.bytes <= 512 * 1024
    assert cached.lifted.hits > 0 and cached.counts.hits["plan"] > 100
    cached.drop()
    assert (cached.cache.bytes, cached.lifted.bytes) == (0, 0)


def test_ids_can_be_written_to_without_harm(chatml: Tokenizer) -> None:
    cached = CachedTokenizer(chatml)
    raw = body(("user", "hello"))
    draft = cached.planned(orjson.loads(raw))
    assert draft is not None
    wanted = ids_of(cached, raw)
    for fields in ({"messages": [{"role": "user", "content": "hello"}]}, {"prompt_token_ids": [5]}):
        draft = cached.planned(fields) or cached.cut(cached.read(fields, chat=True))
        assert not draft.holes
        cached.joined(draft)[:] = 0
    assert ids_of(cached, raw) == wanted


def test_long_texts_are_not_cut_on_the_loop(chatml: Tokenizer) -> None:
    cached = CachedTokenizer(chatml)
    raw = orjson.dumps({"prompt": f"hello{EOS}" * 140_000})
    draft = cached.cut(cached.read(orjson.loads(raw), chat=False))
    assert len(draft.holes) == 1 and draft.holes[0].key is None
    assert ids_of(cached, raw, chat=False) == whole(chatml, raw, chat=False)
    assert len(cached.cache) == 0


@pytest.mark.parametrize(
    ("fields", "chat", "here"),
    [
        ({"messages": [{"role": "user", "content": "x" * 100_000}]}, True, True),
        ({"messages": [{"role": "user", "content": "x"}] * 600}, True, False),
        ({"messages": [{"role": "user", "content": "x"}] * 400}, True, True),
        ({"messages": [], "tools": [{"x": "y" * 100_000}]}, True, False),
        ({"messages": "x" * 20_000}, True, False),
        ({"messages": [None, "x" * 20_000]}, True, False),
        ({"prompt": "x" * 100_000}, False, True),
        ({"prompt": ["x" * 100_000]}, False, False),
        ({"prompt": [1] * 20_000}, False, False),
        ({"prompt": ["x"]}, False, True),
    ],
)
def test_templates_with_much_to_do_run_in_a_thread(chatml: Tokenizer, fields: dict[str, Any], chat: bool, here: bool) -> None:
    assert CachedTokenizer(chatml).reads_here(fields, len(orjson.dumps(fields)), chat=chat) is here


# Short names stand for long texts, so that hypothesis can show what it found.
TEXTS = st.lists(
    st.sampled_from(
        ["§", "<|im_end|>", "<|im_start|>", EOS, BOS, "</think>", "<tool_response>", "\n", " ", "hello", "é你🎉", "<|im_", "user"]
    )
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    max_size=4,
).map("".join)
PARTS_OF_TEXT = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}) | TEXTS, max_size=2)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]),
            "content": TEXTS | PARTS_OF_TEXT | st.none(),
        },
        optional={"name": st.just("n"), "tool_calls": st.just([{"function": {"name": "w", "arguments": '{"a": "<|im_end|>"}'}}])},
    )
    | st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXTS}),
    max_size=6,
)
CHATS = st.fixed_dictionaries(
    {"messages": MESSAGES},
    optional={
        "tools": st.sampled_from([None, [], [{"type": "function", "function": {"name": "w", "description": "<|im_end|>"}}]]),
        "add_generation_prompt": st.booleans(),
        "continue_final_message": st.booleans(),
        "add_special_tokens": st.booleans(),
        "chat_template_kwargs": st.just({"enable_thinking": False}),
    },
)


@pytest.mark.parametrize("name", ["chatml", "tools", "bos", "parts", "thinking", "trimmed"])
@settings(max_examples=40, deadline=None)
@given(chats=st.lists(CHATS, min_size=1, max_size=3), pretty=st.booleans())
def test_any_chats_have_the_ids_of_the_whole(
    tokenizers: dict[str, Tokenizer], name: str, chats: list[dict[str, Any]], pretty: bool
) -> None:
    """FC-22, FC-23: every combination of caches, over the same chats, each chat twice and in growing parts."""
    tokenizer = tokenizers[name]
    if name not in MADE:
        MADE[name] = [CachedTokenizer(tokenizer, **switches, budget_mib=1) for switches in SWITCHES]
    for chat in chats:
        for length in {len(chat["messages"]) // 2, len(chat["messages"])}:
            grown = {**chat, "messages": chat["messages"][:length]}
            raw = (
                (json.dumps(grown, indent=2) if pretty else json.dumps(grown)).replace("\\u00a7", json.dumps(LONG)[1:-1]).encode()
            )
            wanted = whole(tokenizer, raw)
            for cached in MADE[name] * 2:
                assert ids_of(cached, raw) == wanted, cached.caches


MADE: dict[str, list[CachedTokenizer]] = {}


def test_what_is_remembered_may_not_be_written_to(chatml: Tokenizer) -> None:
    cached = CachedTokenizer(chatml)
    ids_of(cached, body(("user", "hello")))
    ids_of(cached, body(("user", "hello"), ("assistant", "the"), ("user", "user")))
    assert len(cached.cache) == 3
    for key in list(cached.cache._entries):
        ids = cached.cache.get(key)
        assert ids is not None and ids.dtype == np.int32
        with pytest.raises(ValueError, match="read-only"):
            np.copyto(ids, 0)
