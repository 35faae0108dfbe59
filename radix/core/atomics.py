"""Raw memory as intrinsics: loads and stores by address, ordered ones, fences, prefetch, vector compare.

Invariants
- Addresses and values are int64. Narrow loads are zero-extended, narrow stores truncated; none needs alignment.
- The ordered ones are LLVM atomics on aligned 8 bytes, so they are right on x86 and on Arm; a plain load or store may be moved
  by the compiler and the CPU, which is why `sequence_begin` and its kin (see `sequence`) exist and nobody else uses fences.
- Vector compares read exactly the bytes they name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils as _untyped_cgutils
from numba.extending import intrinsic

_BYTE, _HALF, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_i64 = types.int64
_cgutils: Any = _untyped_cgutils
_FALSE = ir.Constant(ir.IntType(1), 0)
_Emit = Callable[[Any, Any, Any, Any], Any]  # context, builder, signature, arguments


def _load(bits: int) -> Callable[[int], int]:
    kind = ir.IntType(bits)

    def load(_: Any, address: Any) -> tuple[Any, _Emit]:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(builder.inttoptr(args[0], kind.as_pointer()), align=1)
            return value if bits == 64 else builder.zext(value, _LONG)

        return _i64(_i64), emit

    return cast(Callable[[int], int], intrinsic(load))


def _store(bits: int) -> Callable[[int, int], None]:
    kind = ir.IntType(bits)

    def store(_: Any, address: Any, value: Any) -> tuple[Any, _Emit]:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            narrow = args[1] if bits == 64 else builder.trunc(args[1], kind)
            builder.store(narrow, builder.inttoptr(args[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(_i64, _i64), emit

    return cast(Callable[[int, int], None], intrinsic(store))


load_8, load_32, load_64 = _load(8), _load(32), _load(64)
store_8, store_32, store_64 = _store(8), _store(32), _store(64)


def _ordered_load(ordering: str) -> Callable[[int], int]:
    def load(_: Any, address: Any) -> tuple[Any, _Emit]:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load_atomic(builder.inttoptr(args[0], _LONG.as_pointer()), ordering, 8)

        return _i64(_i64), emit

    return cast(Callable[[int], int], intrinsic(load))


def _ordered_store(ordering: str) -> Callable[[int, int], None]:
    def store(_: Any, address: Any, value: Any) -> tuple[Any, _Emit]:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store_atomic(args[1], builder.inttoptr(args[0], _LONG.as_pointer()), ordering, 8)
            return context.get_dummy_value()

        return types.void(_i64, _i64), emit

    return cast(Callable[[int, int], None], intrinsic(store))


def _fence(ordering: str) -> Callable[[], None]:
    def fence(_: Any) -> tuple[Any, _Emit]:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.fence(ordering)
            return context.get_dummy_value()

        return types.void(), emit

    return cast(Callable[[], None], intrinsic(fence))


load_acquire, load_relaxed = _ordered_load("acquire"), _ordered_load("monotonic")
store_release, store_relaxed = _ordered_store("release"), _ordered_store("monotonic")
fence_acquire, fence_release = _fence("acquire"), _fence("release")


def _differ(size: int) -> Callable[[int, int], int]:
    """Not 0 when the `size` bytes at two addresses differ; size is a multiple of 32."""
    lanes = ir.VectorType(_LONG, 4)
    wide = ir.IntType(256)

    def differ(_: Any, left: Any, right: Any) -> tuple[Any, _Emit]:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            any_bit = None
            for at in range(0, size, 32):
                step = ir.Constant(_LONG, at)
                ours, theirs = (
                    builder.load(builder.inttoptr(builder.add(arg, step), lanes.as_pointer()), align=1) for arg in args
                )
                bits = builder.xor(ours, theirs)
                any_bit = bits if any_bit is None else builder.or_(any_bit, bits)
            answer = builder.icmp_unsigned("!=", builder.bitcast(any_bit, wide), ir.Constant(wide, 0))
            return builder.zext(answer, _LONG)

        return _i64(_i64, _i64), emit

    return cast(Callable[[int, int], int], intrinsic(differ))


differ_256, differ_32 = _differ(256), _differ(32)


def equals(data: bytes) -> Callable[[int], int]:
    """A function of an address: 1 when these bytes stand there. It reads up to the next multiple of 8."""
    words = [data[at : at + 8] for at in range(0, len(data), 8)]

    def equal(_: Any, address: Any) -> tuple[Any, _Emit]:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            differing = ir.Constant(_LONG, 0)
            for number, word in enumerate(words):
                place = builder.add(args[0], ir.Constant(_LONG, number * 8))
                found = builder.load(builder.inttoptr(place, _LONG.as_pointer()), align=1)
                bits = builder.xor(found, ir.Constant(_LONG, int.from_bytes(word, "little")))
                mask = ir.Constant(_LONG, (1 << 8 * len(word)) - 1)
                differing = builder.or_(differing, builder.and_(bits, mask))
            return builder.zext(builder.icmp_unsigned("==", differing, ir.Constant(_LONG, 0)), _LONG)

        return _i64(_i64), emit

    return cast(Callable[[int], int], intrinsic(equal))


def _first_of_four(_: Any, address: Any, key: Any) -> tuple[Any, _Emit]:
    """Among four 16-byte entries: the number of the first whose key is `key` or 0, else 4."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair, four, bits = ir.VectorType(_LONG, 8), ir.VectorType(_LONG, 4), ir.IntType(4)
        entries = builder.load(builder.inttoptr(args[0], pair.as_pointer()), align=1)
        evens = ir.Constant(ir.VectorType(_HALF, 4), [0, 2, 4, 6])
        keys = builder.shuffle_vector(entries, ir.Constant(pair, ir.Undefined), evens)
        wanted = ir.Constant(four, ir.Undefined)
        for lane in range(4):
            wanted = builder.insert_element(wanted, args[1], ir.Constant(_HALF, lane))
        hit = builder.or_(
            builder.icmp_unsigned("==", keys, wanted), builder.icmp_unsigned("==", keys, ir.Constant(four, [0] * 4))
        )
        mask = builder.or_(builder.zext(builder.bitcast(hit, bits), _LONG), ir.Constant(_LONG, 16))
        return builder.cttz(mask, _FALSE)

    return _i64(_i64, _i64), emit


first_of_four = cast(Callable[[int, int], int], intrinsic(_first_of_four))


def _integer(operation: Callable[..., Any], arity: int) -> Callable[..., int]:
    """An int64 function whose body is `operation(builder, *arguments)`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return operation(builder, *args)

    def unary(_: Any, value: Any) -> tuple[Any, _Emit]:
        return _i64(_i64), emit

    def binary(_: Any, left: Any, right: Any) -> tuple[Any, _Emit]:
        return _i64(_i64, _i64), emit

    return cast(Callable[..., int], intrinsic(unary if arity == 1 else binary))


def _high(builder: Any, left: Any, right: Any) -> Any:
    wide = ir.IntType(128)
    product = builder.mul(builder.zext(left, wide), builder.zext(right, wide))
    return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), _LONG)


shift_right = _integer(lambda builder, value, by: builder.lshr(value, by), 2)
mul_high = _integer(_high, 2)  # upper 64 bits of the unsigned product
divide = _integer(lambda builder, value, by: builder.udiv(value, by), 2)
trailing_zeros = _integer(lambda builder, value: builder.cttz(value, _FALSE), 1)
leading_zeros = _integer(lambda builder, value: builder.ctlz(value, _FALSE), 1)
swap_bytes = _integer(lambda builder, value: builder.bswap(value), 1)


def _prefetch(_: Any, address: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, _HALF, _HALF, _HALF])
        function = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(args[0], pointer), *(ir.Constant(_HALF, n) for n in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(_i64), emit


def _copy(_: Any, target: Any, source: Any, size: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(pointer, [pointer, pointer, _LONG])
        function = _cgutils.get_or_insert_function(builder.module, kind, "memmove")
        builder.call(function, [builder.inttoptr(args[0], pointer), builder.inttoptr(args[1], pointer), args[2]])
        return context.get_dummy_value()

    return types.void(_i64, _i64, _i64), emit


def _fill_zero(_: Any, target: Any, size: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(pointer, [pointer, _HALF, _LONG])
        function = _cgutils.get_or_insert_function(builder.module, kind, "memset")
        builder.call(function, [builder.inttoptr(args[0], pointer), ir.Constant(_HALF, 0), args[1]])
        return context.get_dummy_value()

    return types.void(_i64, _i64), emit


def _advise(_: Any, address: Any, size: Any, advice: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(_HALF, [pointer, _LONG, _HALF])
        function = _cgutils.get_or_insert_function(builder.module, kind, "madvise")
        builder.call(function, [builder.inttoptr(args[0], pointer), args[1], builder.trunc(args[2], _HALF)])
        return context.get_dummy_value()

    return types.void(_i64, _i64, _i64), emit


def _data_of(_: Any, array: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = _cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
        return builder.ptrtoint(view.data, _LONG)

    return _i64(array), emit


prefetch = cast(Callable[[int], None], intrinsic(_prefetch))  # any address is allowed
copy = cast(Callable[[int, int, int], None], intrinsic(_copy))  # target, source, bytes; the ranges may overlap
fill_zero = cast(Callable[[int, int], None], intrinsic(_fill_zero))  # target, bytes
advise = cast(Callable[[int, int, int], None], intrinsic(_advise))  # madvise: page address, bytes, advice
data_of = cast(Callable[[npt.NDArray[Any] | bytes], int], intrinsic(_data_of))  # address of the first element
