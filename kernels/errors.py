"""The one root error of the kernels and its kinds."""

from __future__ import annotations


class KernelError(Exception):
    """A kernel can not run here, or not on what it was given; the text names the values."""


class ShapeError(KernelError, ValueError):
    """A tensor's shape, dtype, strides or device do not fit what the kernel promises."""
