"""Texts that tell what a chat template does with them.

A template that only prints a content gives the same text around every content. One that looks into it may not, so each look is
noted: as a condition under which the answer is the same for other contents, or as a look that can not be understood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, SupportsIndex, cast


@dataclass(slots=True)
class Looks:
    """What was looked for in contents.

    parts: texts a content must not contain; wholes: texts it must not be; edges: characters it must not begin or end with, None
    for white space; unknown: names of operations after which nothing can be said.
    """

    parts: set[str] = field(default_factory=set)
    wholes: set[str] = field(default_factory=set)
    edges: set[str | None] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)

    def admits(self, text: str) -> bool:
        """Whether every look gives the answer for this text that it gave for the watched one."""
        if text in self.wholes or any(part in text for part in self.parts):
            return False
        return all(len(text.strip(characters)) == len(text) for characters in self.edges)


class Watched(str):
    """A content under watch. joined: something was put in front or behind, so what is found in it says less about it."""

    looks: Looks
    joined: bool

    def __new__(cls, text: str, looks: Looks, *, joined: bool = False) -> Watched:
        self = super().__new__(cls, text)
        self.looks = looks
        self.joined = joined
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> Watched:
        return Watched(str.__add__(self, other), self.looks, joined=True)

    def __radd__(self, other: str) -> Watched:
        return Watched(str.__add__(other, self), self.looks, joined=True)

    def __bool__(self) -> bool:
        self.looks.wholes.add("")
        return True

    def __contains__(self, part: object) -> bool:
        return self._look_for(part, "in")

    def startswith(self, part: str | tuple[str, ...], *bounds: SupportsIndex | None) -> bool:
        """Noted."""
        return self._look_for_any(part, bounds, "startswith")

    def endswith(self, part: str | tuple[str, ...], *bounds: SupportsIndex | None) -> bool:
        """Noted."""
        return self._look_for_any(part, bounds, "endswith")

    def strip(self, characters: str | None = None, /) -> Watched:
        """Noted."""
        return self._edge(characters)

    def lstrip(self, characters: str | None = None, /) -> Watched:
        """Noted."""
        return self._edge(characters)

    def rstrip(self, characters: str | None = None, /) -> Watched:
        """Noted."""
        return self._edge(characters)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            if self.joined or isinstance(other, Watched):
                self.looks.unknown.add("==")
            self.looks.wholes.add(str.__str__(other))
        return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        self.looks.unknown.add("hash")
        return super().__hash__()

    def __iter__(self) -> Iterator[str]:
        self.looks.unknown.add("iter")
        return super().__iter__()

    def _look_for(self, part: object, name: str) -> bool:
        if self.joined or type(part) is not str or not part or str.__contains__(self, part):
            self.looks.unknown.add(name)
        else:
            self.looks.parts.add(part)
        return False

    def _look_for_any(self, part: str | tuple[str, ...], bounds: tuple[object, ...], name: str) -> bool:
        if bounds:
            self.looks.unknown.add(name)
        parts = part if isinstance(part, tuple) else (part,)
        return any(self._look_for(one, name) for one in parts)

    def _edge(self, characters: str | None) -> Watched:
        if self.joined or type(characters) not in (str, type(None)):
            self.looks.unknown.add("strip")
        self.looks.edges.add(characters)
        return self


# What a watched text does itself, and what says nothing about its content.
_OWN = frozenset(vars(Watched))
_SILENT = frozenset(
    (
        "__class__",
        "__delattr__",
        "__dir__",
        "__getattribute__",
        "__init__",
        "__init_subclass__",
        "__new__",
        "__repr__",
        "__setattr__",
        "__subclasshook__",
    )
)


def _noted(name: str) -> Callable[..., Any]:
    plain = cast(Callable[..., Any], getattr(str, name))

    def look(self: Watched, *arguments: object, **options: object) -> Any:
        self.looks.unknown.add(name)
        return plain(self, *arguments, **options)

    return look


for _name in dir(str):
    if _name not in _OWN | _SILENT and callable(getattr(str, _name)):
        setattr(Watched, _name, _noted(_name))
