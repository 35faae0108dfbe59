"""Chat templates, rendered in the same sandbox as engines do.

The environment is the one of transformers: immutable sandbox, `trim_blocks`, `lstrip_blocks`, loop controls, a `tojson` that
does not escape HTML. Any difference here shows up as a prompt that matches nothing (FC-22).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from gateway.errors import NoTokens
from gateway.tokenize import reasons
from gateway.tokenize.messages import Message, conversation, tool_list

CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "  # the blank tells whether the template trims the content
RESERVED_OPTIONS = frozenset({"messages", "tools", "chat_template", "tokenize"})


class ChatTemplate:
    """The template or templates of one model. Thread safe."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """sources: template text by name; 'default', and 'tool_use' for requests with tools where there is one."""
        environment = _environment()
        try:
            self._templates = {name: environment.from_string(source) for name, source in sources.items()}
            self._keep_parts = {name: _loops_over_parts(environment.parse(source)) for name, source in sources.items()}
        except jinja2.TemplateSyntaxError as error:
            raise NoTokens(reasons.NO_TEMPLATE, f"chat template line {error.lineno}: {error.message}") from error
        self.source = sources.get("default")
        self._sources = tuple(sources.values())
        self._keep_developer = {name: "developer" in source for name, source in sources.items()}
        self._special_tokens = dict(special_tokens)

    @classmethod
    def load(cls, folder: Path, config: Mapping[str, object]) -> ChatTemplate | None:
        """The template of a Hugging Face folder; `config` is its tokenizer_config.json. None where there is none."""
        sources = _sources(folder, config)
        return cls(sources, named_special_tokens(config)) if sources else None

    def render(
        self,
        messages: object,
        *,
        tools: object = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt text; raises NoTokens for what the template, or an engine in front of it, refuses.

        options: further variables of the template, from `chat_template_kwargs`.
        """
        if continue_final_message and add_generation_prompt:
            raise NoTokens(reasons.TEMPLATE, "continue_final_message and add_generation_prompt exclude each other")
        if options and not RESERVED_OPTIONS.isdisjoint(options):
            raise NoTokens(reasons.TEMPLATE, f"chat_template_kwargs must not set {sorted(RESERVED_OPTIONS & options.keys())}")
        tools = tool_list(tools)
        name = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise NoTokens(reasons.NO_TEMPLATE, f"none of the templates {sorted(self._templates)} is the default")
        chat = conversation(messages, keep_parts=self._keep_parts[name], keep_developer=self._keep_developer[name])
        ending = _mark_end(chat[-1]) if continue_final_message else None
        variables = {**self._special_tokens, "documents": None, "add_generation_prompt": add_generation_prompt, **(options or {})}
        text = self._run(name, {**variables, "messages": chat, "tools": tools})
        return text if ending is None else _cut_after(text, ending)

    def plain(self, roles: Sequence[str], contents: Sequence[str]) -> str:
        """The prompt text of messages that are a role and a text, with the very objects given; every option at its default."""
        keep_parts = self._keep_parts["default"]
        chat = [
            {"role": role, "content": [{"type": "text", "text": content}] if keep_parts else content}
            for role, content in zip(roles, contents, strict=True)
        ]
        variables = {**self._special_tokens, "documents": None, "add_generation_prompt": True}
        return self._run("default", {**variables, "messages": chat, "tools": None})

    @property
    def reads_clock(self) -> bool:
        """Whether the same messages may give another text later."""
        return any("strftime_now" in source for source in self._sources)

    def syntax(self) -> jinja2.nodes.Template:
        """The default template's syntax tree."""
        assert self.source is not None
        return _environment().parse(self.source)

    def _run(self, name: str, variables: Mapping[str, object]) -> str:
        try:
            return self._templates[name].render(variables)
        except jinja2.TemplateError as error:
            raise NoTokens(reasons.TEMPLATE, f"the chat template refuses the messages: {str(error)[:200]}") from error
        except Exception as error:  # the model's code on the client's data: whatever it raises is a refusal
            raise NoTokens(reasons.TEMPLATE, f"the chat template fails with {type(error).__name__}") from error


def named_special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """bos_token, eos_token and the like of a tokenizer_config.json, as texts."""
    tokens: dict[str, str] = {}
    for key, value in config.items():
        if key.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                tokens[key] = text
    return tokens


def _sources(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Templates by name; files win over the entry in the configuration, as in transformers."""
    listed = config.get("chat_template")
    sources: dict[str, str] = {}
    if isinstance(listed, str):
        sources["default"] = listed
    elif isinstance(listed, list):
        sources.update({str(entry["name"]): str(entry["template"]) for entry in listed if {"name", "template"} <= set(entry)})
    main = folder / "chat_template.jinja"
    if main.is_file():
        sources = {"default": main.read_text(encoding="utf-8")}
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
            sources[path.stem] = path.read_text(encoding="utf-8")
    return sources


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks what the model wrote, for training; a prompt only needs what is inside."""

    tags = {"generation"}  # noqa: RUF012 - the name and kind are jinja2's

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _loops_over_parts(tree: jinja2.nodes.Template) -> bool:
    """Whether the template iterates over the content of a message, and so wants parts instead of one text."""
    messages = {"messages"} | {
        node.target.name
        for node in tree.find_all(jinja2.nodes.Assign)
        if isinstance(node.target, jinja2.nodes.Name) and _is_part_of(node.node, {"messages"})
    }
    loops = list(tree.find_all(jinja2.nodes.For))
    each = {loop.target.name for loop in loops if isinstance(loop.target, jinja2.nodes.Name) and _is_part_of(loop.iter, messages)}
    contents = {
        node.target.name
        for node in tree.find_all(jinja2.nodes.Assign)
        if isinstance(node.target, jinja2.nodes.Name) and _is_content_of(node.node, each)
    }
    return any(_is_content_of(loop.iter, each) or _is_part_of(loop.iter, contents) for loop in loops)


def _is_part_of(node: jinja2.nodes.Node, names: set[str]) -> bool:
    """The variable itself, filtered, tested, or sliced."""
    while isinstance(node, jinja2.nodes.Filter | jinja2.nodes.Test | jinja2.nodes.Getitem):
        if isinstance(node, jinja2.nodes.Getitem) and not isinstance(node.arg, jinja2.nodes.Slice):
            return False
        if node.node is None:
            return False
        node = node.node
    return isinstance(node, jinja2.nodes.Name) and node.name in names


def _is_content_of(node: jinja2.nodes.Node, names: set[str]) -> bool:
    """`message.content` or `message['content']`, filtered or tested, of one of the named variables."""
    while isinstance(node, jinja2.nodes.Filter | jinja2.nodes.Test) and node.node is not None:
        node = node.node
    if isinstance(node, jinja2.nodes.Getattr):
        key: object = node.attr
    elif isinstance(node, jinja2.nodes.Getitem) and isinstance(node.arg, jinja2.nodes.Const):
        key = node.arg.value
    else:
        return False
    return key == "content" and _is_part_of(node.node, names)


def _mark_end(message: Message) -> str:
    """Append the mark to the last text of the message; returns that text without it."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + CONTINUE_MARK
        return content
    assert isinstance(content, list)
    if not content:
        raise NoTokens(reasons.TEMPLATE, "continue_final_message needs a final message with text")
    text: str = content[-1]["text"]
    content[-1]["text"] = text + CONTINUE_MARK
    return text


def _cut_after(text: str, ending: str) -> str:
    """The rendered text up to the end of the final message."""
    mark = CONTINUE_MARK.strip()
    if mark not in text or ending.strip() not in text:
        raise NoTokens(reasons.TEMPLATE, "continue_final_message: the template drops the final message")
    at = text.rindex(mark)
    cut = text[:at]
    return cut if text.startswith(CONTINUE_MARK, at) else cut.rstrip()
