"""Chat messages and tools as engines hand them to a chat template.

The rules are vLLM's: only known fields travel, content becomes one text (or a list of text parts for templates that loop over
parts), tool arguments become objects. New dicts are built; the request body is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from gateway.errors import NoTokens
from gateway.tokenize import reasons

Message = dict[str, object]

_TEXT_FIELDS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}


def conversation(messages: object, *, keep_parts: bool, keep_developer: bool) -> list[Message]:
    """Messages ready for a template; raises NoTokens for a shape that engines refuse, or for content that is not text.

    keep_parts: the template loops over content parts, so they stay a list; otherwise they are joined with a newline.
    keep_developer: the template knows the role 'developer'; otherwise it becomes 'system'.
    """
    if not isinstance(messages, list):
        raise NoTokens(reasons.SHAPE, f"messages must be a list, got {type(messages).__name__}")
    if not messages:
        raise NoTokens(reasons.TEMPLATE, "messages is empty; a chat needs at least one message")
    return [_message(item, number, keep_parts, keep_developer) for number, item in enumerate(messages)]


def _message(source: object, number: int, keep_parts: bool, keep_developer: bool) -> Message:
    where = f"messages[{number}]"
    if not isinstance(source, dict):
        raise NoTokens(reasons.SHAPE, f"{where} must be an object, got {type(source).__name__}")
    role = source.get("role")
    if not isinstance(role, str):
        raise NoTokens(reasons.SHAPE, f"{where}.role must be a string, got {role!r:.40}")
    texts = _texts(source.get("content"), where)
    content: object = [{"type": "text", "text": text} for text in texts] if keep_parts else "\n".join(texts)
    message: Message = {"role": role, "content": content}
    if role == "assistant":
        _add_assistant_fields(message, source, where)
    elif role == "tool" and "tool_call_id" in source:
        message["tool_call_id"] = source["tool_call_id"]
    elif role == "developer":
        message["role"] = "developer" if keep_developer else "system"
        message["tools"] = source.get("tools")
    if isinstance(source.get("name"), str):
        message["name"] = source["name"]
    return message


def _texts(content: object, where: str) -> list[str]:
    """The text parts of a content; none for null."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise NoTokens(reasons.SHAPE, f"{where}.content must be a string or a list, got {type(content).__name__}")
    texts = (_part_text(part, f"{where}.content[{number}]") for number, part in enumerate(content))
    return [text for text in texts if text is not None]


def _part_text(part: object, where: str) -> str | None:
    """The text of one part; None for a text part that holds null, which engines skip."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise NoTokens(reasons.SHAPE, f"{where} must be an object, got {type(part).__name__}")
    field = _TEXT_FIELDS.get(str(part.get("type")))
    if field is None:
        raise NoTokens(reasons.IMAGES, f"{where} has type {part.get('type')!r:.40}, only text can be tokenized")
    text = part.get(field)
    if text is not None and not isinstance(text, str):
        raise NoTokens(reasons.SHAPE, f"{where}.{field} must be a string, got {type(text).__name__}")
    return text


def _add_assistant_fields(message: Message, source: Mapping[str, object], where: str) -> None:
    calls = source.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise NoTokens(reasons.SHAPE, f"{where}.tool_calls must be a list, got {type(calls).__name__}")
        message["tool_calls"] = [_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    reasoning = source.get("reasoning")
    if reasoning is not None:
        message["reasoning"] = message["reasoning_content"] = reasoning


def _tool_call(call: object, where: str) -> Message:
    """A call with its arguments as an object: templates print them as one."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise NoTokens(reasons.SHAPE, f"{where} must be an object with a function")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError as error:
            raise NoTokens(reasons.TEMPLATE, f"{where}.function.arguments is not JSON") from error
    return {**call, "function": {**function, "arguments": arguments}}


def tool_list(tools: object) -> list[Message] | None:
    """Tools with every field an engine's own model prints, in its order; None where the body has none."""
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise NoTokens(reasons.SHAPE, f"tools must be a list, got {type(tools).__name__}")
    return [_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]


def _tool(tool: object, where: str) -> Message:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise NoTokens(reasons.SHAPE, f"{where} must be an object with a named function")
    # A template that prints tools as JSON prints the nulls too, so an absent description has to be there.
    named = {"name": function["name"], "description": function.get("description"), "parameters": function.get("parameters")}
    return {"type": "function", **tool, "function": {**named, **function}}
