"""What TensorRT-LLM's native stream, and those who repeat it, say in fields of their own.

The messages themselves have the shape of `engine_wire`. Its token lists may hold strings, digests of the tokens of an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shown

from events.decode.fields import Malformed


def image_keys(fields: Mapping[str, object]) -> list[list[bytes]]:
    """The images that touch each block of a store, from `mm_keys` or a repeater's `block_mm_infos`; else nothing."""
    keys = fields.get("mm_keys")
    if isinstance(keys, list):
        return [[_named(image, "hash") for image in _listed(of_block)] for of_block in keys]
    infos = fields.get("block_mm_infos")
    if isinstance(infos, list):
        objects = [info.get("mm_objects") if isinstance(info, dict) else info for info in infos]
        return [[_named(image, "mm_hash") for image in _listed(of_block)] for of_block in objects]
    return []


def _listed(value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise Malformed(f"image keys {shown(value)}")
    return value


def _named(image: object, name: str) -> bytes:
    value = image.get(name) if isinstance(image, dict) else None
    if not isinstance(value, str | int):
        raise Malformed(f"image key {shown(image)}")
    return str(value).encode("utf-8", "surrogatepass")
