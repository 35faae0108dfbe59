"""Namespaces of the blocks of one store, whichever engine wrote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr as shown

from events.decode.fields import Malformed
from events.decode.trtllm import image_keys
from radix.changes import NO_HINT, NamespaceHint

OPAQUE = b"\0opaque"  # stands for an image whose tokens no prompt can have


class Namespaces:
    """What, beside the tokens, entered the hash of each block of one store.

    vLLM's `extra_keys` lists per block the adapter, then an item per image that touches the block, then the cache salt (first
    block of a prompt only), then a digest of prompt embeddings. Others have a field for each.
    """

    def __init__(self, fields: Mapping[str, object], *, starts_prompt: bool) -> None:
        self.adapter = _adapter_of(fields)
        self.starts_prompt = starts_prompt
        salt = fields.get("cache_salt")
        self.salt = salt if isinstance(salt, str) and salt else None
        keys = fields.get("extra_keys")
        self._entries: Sequence[object] = keys if isinstance(keys, list) and any(keys) else ()
        self._images = image_keys(fields)

    def runs(self, count: int, opaque: frozenset[int] = frozenset()) -> list[tuple[int, NamespaceHint]]:
        """(first block, hint) of each stretch of `count` blocks with one namespace; a new image starts a new one.

        opaque: blocks that no prompt can have.
        """
        if not self._entries and not self._images and not opaque:
            return [(0, NamespaceHint(self.adapter, self.salt) if self.adapter or self.salt else NO_HINT)]
        seen: set[bytes] = set()
        runs: list[tuple[int, NamespaceHint]] = []
        salt = self.salt
        for i in range(count):
            media, found_salt = self._read(self._entries[i], first=i == 0) if i < len(self._entries) else ([], None)
            media += self._images[i] if i < len(self._images) else []
            media += [OPAQUE] if i in opaque else []
            salt = found_salt or salt
            new = [item for item in dict.fromkeys(media) if item not in seen]
            if i == 0 or new:
                runs.append((i, NamespaceHint(self.adapter, salt if i == 0 else None, tuple(new))))
                seen.update(new)
        return runs or [(0, NamespaceHint(self.adapter, salt))]

    def _read(self, entry: object, *, first: bool) -> tuple[list[bytes], str | None]:
        if entry is None:
            return [], None
        if not isinstance(entry, list):
            raise Malformed(f"extra keys {shown(entry)}")
        items: list[object] = entry[1:] if entry and self.adapter is not None and entry[0] == self.adapter else entry
        salt: str | None = None
        if first and self.starts_prompt:
            # A bare string in a prompt's first block is its salt; one release wrote image ids bare too. Both separate namespaces.
            bare = [(i, item) for i, item in enumerate(items) if isinstance(item, str)]
            if bare:
                last, salt = bare[-1]
                items = items[:last] + items[last + 1 :]
        return [_medium_key(item) for item in items], salt or None


def _adapter_of(fields: Mapping[str, object]) -> str | None:
    name = fields.get("lora_name")
    if isinstance(name, str) and name:
        return name
    number = fields.get("lora_id")
    # Older engines tell a process-local number only: enough to keep it apart from the base model, never enough to match.
    return f"lora-id:{number}" if number is not None else None


def _medium_key(item: object) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes):
        return b"\0embeds:" + item  # prompt embeddings: no request can name it, so it never matches
    if isinstance(item, list) and item and isinstance(item[0], str):
        return item[0].encode()
    raise Malformed(f"extra key {shown(item)}")
