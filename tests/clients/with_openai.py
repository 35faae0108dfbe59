"""The official `openai` client; run by an interpreter that has it: `python with_openai.py SETTING`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import openai
from checks import STORY, Setting, raises, run  # type: ignore[import-not-found]  # a script beside it, not a module of a package

MESSAGES: list[Any] = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Where do ships go?"}]
LONG: list[Any] = [{"role": "user", "content": STORY}]


class Checks:
    """One client, and what is done with it."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.model = setting.model
        self.client = self.connect()

    def connect(self, **options: Any) -> openai.OpenAI:
        given: dict[str, Any] = {
            "base_url": f"{self.setting.base}/v1",
            "api_key": self.setting.key,
            "max_retries": 0,
            "timeout": 60,
        }
        return openai.OpenAI(**{**given, **options})

    def models(self) -> None:
        assert {model.id for model in self.client.models.list()} == {self.model, self.setting.slow_model}

    def one_model(self) -> None:
        assert self.client.models.retrieve(self.model).id == self.model

    def chat(self) -> None:
        answer = self.client.chat.completions.create(model=self.model, messages=MESSAGES, max_tokens=8)
        assert answer.choices[0].message.content
        assert answer.usage is not None and answer.usage.completion_tokens == 8

    def chat_streamed(self) -> None:
        whole = self.client.chat.completions.create(model=self.model, messages=MESSAGES, max_tokens=8)
        chunks = list(self.client.chat.completions.create(model=self.model, messages=MESSAGES, max_tokens=8, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content
        assert all(chunk.usage is None for chunk in chunks)

    def chat_streamed_with_usage(self) -> None:
        stream = self.client.chat.completions.create(
            model=self.model, messages=MESSAGES, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
        last = list(stream)[-1]
        assert last.usage is not None and last.usage.completion_tokens == 8
        assert last.usage.prompt_tokens_details is not None

    def stream_helper(self) -> None:
        with self.client.chat.completions.stream(model=self.model, messages=MESSAGES) as stream:
            kinds = {event.type for event in stream}
            assert stream.get_final_completion().choices[0].message.content
        assert "content.delta" in kinds

    def completions(self) -> None:
        text = self.client.completions.create(model=self.model, prompt="Once upon a time", max_tokens=8)
        assert text.choices[0].text
        ids = self.client.completions.create(model=self.model, prompt=[10, 20, 30, 40], max_tokens=8)
        assert ids.usage is not None and ids.usage.prompt_tokens == 4
        several = self.client.completions.create(model=self.model, prompt=["one", "two"], max_tokens=2)
        assert [choice.index for choice in several.choices] == [0, 1]
        stream = self.client.completions.create(model=self.model, prompt="Once upon a time", max_tokens=8, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == text.choices[0].text

    def embeddings(self) -> None:
        several = self.client.embeddings.create(model=self.model, input=["one", "two", "one"], encoding_format="float")
        vectors = [row.embedding for row in several.data]
        assert vectors[0] == vectors[2] != vectors[1]
        assert self.client.embeddings.create(model=self.model, input="one").data[0].embedding  # base64, as the client prefers

    def responses(self) -> None:
        answer = self.client.responses.create(model=self.model, input="Where do ships go?", max_output_tokens=16)
        assert answer.output_text
        again = self.client.responses.create(model=self.model, input="Why?", previous_response_id=answer.id, max_output_tokens=16)
        assert again.output_text
        assert self.client.responses.retrieve(answer.id).output_text == answer.output_text

    def responses_streamed(self) -> None:
        events = list(
            self.client.responses.create(model=self.model, input="Where do ships go?", max_output_tokens=16, stream=True)
        )
        assert events[0].type == "response.created"
        assert events[-1].type in ("response.completed", "response.incomplete")

    def raw_answer(self) -> None:
        raw = self.client.chat.completions.with_raw_response.create(model=self.model, messages=MESSAGES, max_tokens=2)
        assert raw.headers["x-trunkline-request-id"]
        assert raw.parse().choices

    def unknown_model(self) -> None:
        error = raises(openai.NotFoundError, lambda: self.client.chat.completions.create(model="nobody", messages=MESSAGES))
        assert error.body["message"] and error.type

    def bad_request(self) -> None:
        wrong: Any = "not a list"
        error = raises(openai.BadRequestError, lambda: self.client.chat.completions.create(model=self.model, messages=wrong))
        assert error.param == "messages" and error.body["message"]

    def bad_value(self) -> None:
        """The engine's own refusal passes."""
        error = raises(
            openai.BadRequestError, lambda: self.client.chat.completions.create(model=self.model, messages=MESSAGES, n=3)
        )
        assert "n" in error.body["message"]

    def wrong_key(self) -> None:
        client = self.connect(api_key="sk-wrong")
        error = raises(openai.AuthenticationError, client.models.list)
        assert error.status_code == 401 and error.code == "invalid_api_key" and "sk-wrong" not in str(error)

    def unknown_path(self) -> None:
        raises(openai.NotFoundError, self.client.beta.assistants.list)

    def timeout(self) -> None:
        client = self.connect(timeout=0.5)
        ask = client.chat.completions.create
        raises(openai.APITimeoutError, lambda: ask(model=self.setting.slow_model, messages=LONG))
        self.setting.stops()

    def cancelled_stream(self) -> None:
        stream = self.client.chat.completions.create(model=self.setting.slow_model, messages=LONG, stream=True)
        for _, _ in zip(range(3), stream, strict=False):
            pass
        self.setting.runs()
        stream.close()
        self.setting.stops()

    def many_at_once(self) -> None:
        async def ask() -> None:
            async with openai.AsyncOpenAI(base_url=f"{self.setting.base}/v1", api_key=self.setting.key, timeout=60) as client:

                async def whole(messages: list[Any]) -> str:
                    answer = await client.chat.completions.create(model=self.model, messages=messages, max_tokens=8)
                    return answer.choices[0].message.content or ""

                async def streamed(messages: list[Any]) -> str:
                    stream = await client.chat.completions.create(model=self.model, messages=messages, max_tokens=8, stream=True)
                    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

                chats = [[{"role": "user", "content": f"Number {number}"}] for number in range(25)]
                texts = await asyncio.gather(*map(whole, chats), *map(streamed, chats))
                assert all(texts)
                assert texts[:25] == texts[25:]
                assert len(set(texts)) == 25

        asyncio.run(ask())


def main(argv: list[str]) -> int:
    """Run every check; one JSON line each."""
    checks = Checks(Setting.from_line(argv[1]))
    names = [name for name in vars(Checks) if not name.startswith("_") and name != "connect"]
    return int(run({name: getattr(checks, name) for name in names}))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
