"""Where the prompt stands in a body of each API: the same prompt as fields of a chat or of a completion.

Engines turn messages and responses into a chat of their own before they tokenize; the rules here are vLLM's. Only what all its
versions do alike is converted, the rest is NoTokens: a list of ids that is nearly right matches nothing, and nobody would see it
(FC-22). Texts are passed on as the objects they are, so that the caches find them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway.errors import NoTokens
from gateway.tokenize import reasons

Fields = Mapping[str, Any]


class Prompted(NamedTuple):
    """Fields for the tokenizer. chat: they are those of a chat body, else of a completion body."""

    fields: Fields
    chat: bool


Read = Callable[[Fields], Prompted]

# Claude Code puts a hash of each request in front; vLLM leaves it out, or no two prompts would share a start.
_BILLING = "x-anthropic-billing-header"
_EFFORT = "reasoning_effort"


def chat(fields: Fields) -> Prompted:
    """/v1/chat/completions."""
    return Prompted(fields, True)


def completion(fields: Fields) -> Prompted:
    """/v1/completions."""
    return Prompted(fields, False)


def tokens(fields: Fields) -> Prompted:
    """/inference/v1/generate: ids, which `features` of images make more than they say."""
    if fields.get("features") is not None:
        raise NoTokens(reasons.IMAGES, "features is set")
    return Prompted({"prompt": fields.get("token_ids")}, False)


def generate(fields: Fields) -> Prompted:
    """SGLang's /generate: `text` or `input_ids`, one or several."""
    if fields.get("input_embeds") is not None:
        raise NoTokens(reasons.EMBEDS, "input_embeds is set")
    for name in ("image_data", "audio_data", "video_data"):
        if fields.get(name):
            raise NoTokens(reasons.IMAGES, f"{name} is set")
    ids = fields.get("input_ids")
    return Prompted({"prompt": fields.get("text") if ids is None else ids}, False)


def messages(fields: Fields) -> Prompted:
    """/v1/messages: `system` becomes a turn of its own, blocks of text become texts."""
    if fields.get("tools"):
        raise NoTokens(reasons.TOOLS, "tools is set")
    if fields.get("thinking") is not None:
        raise NoTokens(reasons.THINKING, "thinking is set")
    listed = fields.get("messages")
    if not isinstance(listed, list):
        raise NoTokens(reasons.SHAPE, f"messages must be a list, got {type(listed).__name__}")
    system = _system(fields.get("system"))
    turns = [{"role": "system", "content": system}] if system else []
    turns += [_message(message, number) for number, message in enumerate(listed)]
    chat_fields: dict[str, Any] = {"messages": turns}
    for name in ("tools", "chat_template_kwargs"):  # an empty list of tools is not the same as none to some templates
        if fields.get(name) is not None:
            chat_fields[name] = fields[name]
    output = fields.get("output_config")
    if isinstance(output, dict) and output.get("effort") is not None:
        chat_fields[_EFFORT] = output["effort"]
    return Prompted(chat_fields, True)


def responses(fields: Fields) -> Prompted:
    """/v1/responses: `instructions` become the system's turn, `input` is a text of the user or a list of messages."""
    for name in ("previous_response_id", "previous_response", "previous_input_messages", "conversation", "prompt"):
        if fields.get(name) is not None:
            raise NoTokens(reasons.STATE, f"{name} is set")
    if fields.get("tools"):
        raise NoTokens(reasons.TOOLS, "tools is set")
    if fields.get("truncation", "disabled") != "disabled":
        raise NoTokens(reasons.TRUNCATION, "truncation is set")
    instructions, given = fields.get("instructions"), fields.get("input")
    turns = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        turns.append({"role": "user", "content": given})
    elif isinstance(given, list):
        turns += [_item(item, f"input[{number}]", number == len(given) - 1) for number, item in enumerate(given)]
    else:
        raise NoTokens(reasons.SHAPE, f"input must be a string or a list, got {type(given).__name__}")
    chat_fields: dict[str, Any] = {"messages": turns}
    reasoning = fields.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        chat_fields[_EFFORT] = reasoning["effort"]
    return Prompted(chat_fields, True)


def _system(system: object) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    if not isinstance(system, list):
        raise NoTokens(reasons.SHAPE, f"system must be a string or a list, got {type(system).__name__}")
    texts = [_block_text(block, f"system[{number}]") for number, block in enumerate(system)]
    texts = [text for text in texts if not text.startswith(_BILLING)]
    return texts[0] if len(texts) == 1 else "".join(texts)


def _message(message: object, number: int) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(message, dict):
        raise NoTokens(reasons.SHAPE, f"{where} must be an object, got {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):  # turns of the system between others: each version has another place for them
        raise NoTokens(reasons.SHAPE, f"{where}.role is {role!r:.40}")
    if isinstance(content, str):
        return {"role": role, "content": content}
    if not isinstance(content, list):
        raise NoTokens(reasons.SHAPE, f"{where}.content must be a string or a list, got {type(content).__name__}")
    texts = [text for number, block in enumerate(content) if (text := _block_text(block, f"{where}.content[{number}]"))]
    return {"role": role, "content": _content(texts, where)}


def _block_text(block: object, where: str) -> str:
    """The text of a block; raises NoTokens for one that is none."""
    if not isinstance(block, dict):
        raise NoTokens(reasons.SHAPE, f"{where} must be an object, got {type(block).__name__}")
    kind, text = block.get("type"), block.get("text")
    if kind == "text" and isinstance(text, str):
        return text
    kind = str(kind)
    if "tool" in kind:
        raise NoTokens(reasons.TOOLS, f"{where} has type {kind!r:.40}")
    if "thinking" in kind:
        raise NoTokens(reasons.THINKING, f"{where} has type {kind!r:.40}")
    raise NoTokens(reasons.SHAPE if kind == "text" else reasons.IMAGES, f"{where} has type {kind!r:.40}")


def _content(texts: list[str], where: str) -> str | list[dict[str, str]]:
    if not texts:
        raise NoTokens(reasons.SHAPE, f"{where} has no text")
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _item(item: object, where: str, last: bool) -> dict[str, Any]:
    """One message of a list of items."""
    if not isinstance(item, dict):
        raise NoTokens(reasons.SHAPE, f"{where} must be an object, got {type(item).__name__}")
    kind, role, content = item.get("type", "message"), item.get("role"), item.get("content")
    if kind != "message":
        raise NoTokens(_reason_of_item(str(kind)), f"{where} has type {kind!r:.40}")
    if role not in ("user", "assistant", "system", "developer"):
        raise NoTokens(reasons.SHAPE, f"{where}.role is {role!r:.40}")
    if last and item.get("status") in ("in_progress", "incomplete"):
        raise NoTokens(reasons.SHAPE, f"{where} shall be continued")
    if isinstance(content, list):
        texts = [_part_text(part, f"{where}.content[{number}]") for number, part in enumerate(content)]
        if role == "assistant" and len(texts) > 1:  # the engine takes the first only, or all, as its version is
            raise NoTokens(reasons.SHAPE, f"{where} has several parts")
        content = _content(texts, where)
    return {"role": role, "content": content}


def _reason_of_item(kind: str) -> str:
    if kind == "reasoning":
        return reasons.THINKING
    if kind == "item_reference":
        return reasons.STATE
    return reasons.TOOLS if "call" in kind else reasons.SHAPE


def _part_text(part: object, where: str) -> str:
    kind, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, None)
    if kind in ("input_text", "output_text", "text") and isinstance(text, str):
        return text
    raise NoTokens(
        reasons.IMAGES if str(kind) in ("input_image", "input_file", "input_audio") else reasons.SHAPE, f"{where} is no text"
    )
