"""The official `anthropic` client; run by an interpreter that has it: `python with_anthropic.py SETTING`."""

from __future__ import annotations

import sys
from typing import Any

import anthropic  # type: ignore[import-not-found]  # only the client's environment has it
from checks import STORY, Setting, raises, run  # type: ignore[import-not-found]  # a script beside it, not a module of a package

MESSAGES: list[Any] = [{"role": "user", "content": "Where do ships go?"}]
LONG: list[Any] = [{"role": "user", "content": STORY}]


class Checks:
    """One client, and what is done with it."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.model = setting.model
        self.client = self.connect()

    def connect(self, **options: Any) -> Any:
        given: dict[str, Any] = {"base_url": self.setting.base, "api_key": self.setting.key, "max_retries": 0, "timeout": 60}
        return anthropic.Anthropic(**{**given, **options})

    def message(self) -> None:
        answer = self.client.messages.create(model=self.model, messages=MESSAGES, max_tokens=8, system="You are brief.")
        assert answer.type == "message" and answer.role == "assistant"
        assert answer.content[0].text
        assert answer.usage.output_tokens == 8 and answer.stop_reason == "max_tokens"

    def blocks(self) -> None:
        content = [{"type": "text", "text": "Where do "}, {"type": "text", "text": "ships go?"}]
        answer = self.client.messages.create(model=self.model, messages=[{"role": "user", "content": content}], max_tokens=8)
        assert answer.content[0].text

    def message_streamed(self) -> None:
        whole = self.client.messages.create(model=self.model, messages=MESSAGES, max_tokens=8)
        with self.client.messages.stream(model=self.model, messages=MESSAGES, max_tokens=8) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text == whole.content[0].text == final.content[0].text
        assert final.usage.output_tokens == 8

    def events(self) -> None:
        stream = self.client.messages.create(model=self.model, messages=MESSAGES, max_tokens=4, stream=True)
        kinds = [event.type for event in stream if event.type != "ping"]
        assert kinds[:2] == ["message_start", "content_block_start"] and kinds[-1] == "message_stop"

    def count_tokens(self) -> None:
        assert self.client.messages.count_tokens(model=self.model, messages=MESSAGES).input_tokens > 0

    def models(self) -> None:
        assert {model.id for model in self.client.models.list()} == {self.model, self.setting.slow_model}

    def unknown_model(self) -> None:
        error = raises(
            anthropic.NotFoundError, lambda: self.client.messages.create(model="nobody", messages=MESSAGES, max_tokens=4)
        )
        assert error.body["type"] == "error" and error.body["error"]["type"] == "not_found_error"

    def bad_request(self) -> None:
        wrong: Any = "not a list"
        error = raises(
            anthropic.BadRequestError, lambda: self.client.messages.create(model=self.model, messages=wrong, max_tokens=4)
        )
        assert error.body["error"]["type"] == "invalid_request_error" and error.body["error"]["message"]

    def wrong_key(self) -> None:
        client = self.connect(api_key="sk-wrong")
        error = raises(
            anthropic.AuthenticationError,
            lambda: client.messages.create(model=self.model, messages=MESSAGES, max_tokens=4),
        )
        assert error.body["error"]["type"] == "authentication_error" and "sk-wrong" not in str(error)

    def timeout(self) -> None:
        ask = self.connect(timeout=0.5).messages.create
        raises(anthropic.APITimeoutError, lambda: ask(model=self.setting.slow_model, messages=LONG, max_tokens=5000))
        self.setting.stops()

    def cancelled_stream(self) -> None:
        ask = self.client.messages.create
        stream = ask(model=self.setting.slow_model, messages=LONG, max_tokens=5000, stream=True)
        for _, _ in zip(range(4), stream, strict=False):
            pass
        self.setting.runs()
        stream.close()
        self.setting.stops()


def main(argv: list[str]) -> int:
    """Run every check; one JSON line each."""
    checks = Checks(Setting.from_line(argv[1]))
    names = [name for name in vars(Checks) if not name.startswith("_") and name != "connect"]
    return int(run({name: getattr(checks, name) for name in names}))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
