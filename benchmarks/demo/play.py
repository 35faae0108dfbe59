"""Play the chats through the gateway with the official client, and note what happened on every turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import openai

from benchmarks.demo.http import post_json
from benchmarks.demo.script import SYSTEM, USERS

_BEHIND_S = 0.1  # far less than the first prompt takes


@dataclass(frozen=True, slots=True)
class Turn:
    """One request as its user saw it. Times in seconds, counts in tokens."""

    user: str
    number: int
    replica: str
    reason: str
    prompt_tokens: int
    predicted_tokens: int
    cached_tokens: int
    ttft_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is played: how many users and turns, and how long an answer may be."""

    users: int = 3
    turns: int = 4
    max_tokens: int = 80


def play(base_url: str, plan: Plan, on_turn: Callable[[Turn], None]) -> list[Turn]:
    """All users' chats, interleaved turn by turn, so that round robin scatters every one of them.

    In the first round the second user arrives while the first one's prompt is being computed, the third while both are being
    answered: waiting has a price too. From then on one speaks at a time, so that a time to first token is prefill and no more.
    """
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="not-needed", max_retries=0, timeout=120) as client:
        model = client.models.list().data[0].id
        chats = [_Chat(client, model, user, plan.max_tokens) for user in list(USERS)[: plan.users]]
        turns = _first_round(chats, on_turn)
        for number in range(1, plan.turns):
            for chat in chats:
                turns.append(chat.say(number))
                on_turn(turns[-1])
    return turns


def clear_caches(replica_urls: list[str]) -> None:
    """Empty every replica's prefix cache, so that the next policy starts as the first did."""
    for url in replica_urls:
        answer = post_json(f"{url}/reset_prefix_cache")
        if not answer.get("success"):
            raise RuntimeError(f"{url} did not clear its cache: {answer}")


def warm_up(replica_urls: list[str]) -> None:
    """One short request per replica: the first forward pass of a process is slower than all others."""
    for url in replica_urls:
        body = {"messages": [{"role": "user", "content": "Say hello to everybody in the reading room."}], "max_tokens": 4}
        post_json(f"{url}/v1/chat/completions", body)
    clear_caches(replica_urls)


def _first_round(chats: list[_Chat], on_turn: Callable[[Turn], None]) -> list[Turn]:
    turns: list[Turn | BaseException] = []
    threads = []
    for number, chat in enumerate(chats):
        thread = threading.Thread(target=_collect, args=(chat, turns), daemon=True)
        thread.start()
        threads.append(thread)
        if number == 0:
            time.sleep(_BEHIND_S)
        else:
            for earlier in chats[: number + 1]:
                earlier.first_token.wait(120)
    for thread in threads:
        thread.join()
    done: list[Turn] = []
    for turn in turns:
        if isinstance(turn, BaseException):
            raise turn
        done.append(turn)
    done.sort(key=lambda turn: list(USERS).index(turn.user))
    for turn in done:
        on_turn(turn)
    return done


def _collect(chat: _Chat, turns: list[Turn | BaseException]) -> None:
    try:
        turns.append(chat.say(0))
    except BaseException as error:
        turns.append(error)
        chat.first_token.set()


class _Chat:
    """One user's conversation; remembers what was said."""

    def __init__(self, client: openai.OpenAI, model: str, user: str, max_tokens: int) -> None:
        self.user = user
        self.first_token = threading.Event()
        self._client = client
        self._model = model
        self._max_tokens = max_tokens
        self._messages: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]

    def say(self, number: int) -> Turn:
        """Send the next message and read the whole streamed answer."""
        self._messages.append({"role": "user", "content": USERS[self.user][number]})
        started = time.perf_counter()
        raw = self._client.chat.completions.with_raw_response.create(
            model=self._model,
            messages=self._messages,  # type: ignore[arg-type]
            max_tokens=self._max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        first_at, pieces, usage = 0.0, [], None
        for chunk in raw.parse():
            if chunk.choices and chunk.choices[0].delta.content:
                if not pieces:
                    first_at = time.perf_counter()
                    self.first_token.set()
                pieces.append(chunk.choices[0].delta.content)
            usage = chunk.usage or usage
        text = "".join(pieces)
        self._messages.append({"role": "assistant", "content": text})
        if usage is None or usage.prompt_tokens_details is None:
            raise RuntimeError("the stream ended without usage")
        headers = raw.headers
        return Turn(
            user=self.user,
            number=number + 1,
            replica=headers["x-trunkline-replica"],
            reason=headers["x-trunkline-reason"],
            prompt_tokens=usage.prompt_tokens,
            predicted_tokens=int(headers["x-trunkline-predicted-cached-tokens"]),
            cached_tokens=usage.prompt_tokens_details.cached_tokens or 0,
            ttft_s=first_at - started,
            text=text,
        )
