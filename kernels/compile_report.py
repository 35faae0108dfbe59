"""Compile every shipped configuration for Hopper without a GPU and report what the compiler made of it.

`python -m kernels.compile_report` prints a table, `--json` the same as data. Registers, stack and shared memory come from the
binary itself: a stack above zero means that registers spill to memory, the commonest way a kernel gets slow unnoticed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import decode, prefill, store_kv
from kernels.errors import KernelError
from kernels.tiling import Tile, decode_tile, next_power_of_2, prefill_tile

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_LIMIT_BYTES = 227 * 1024
POINTER_TYPES = {"tables": "*i32", "lengths": "*i32", "starts": "*i32", "contexts": "*i32", "slots": "*i64", "lse": "*fp32"}
# Integers that are not multiples of 16 in real launches; all others (strides in elements) are, and the compiler is told so.
ODD_INTEGERS = frozenset({"sequences", "tokens", "splits", "table_stride"})
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class Configuration:
    """One kernel with the constants and launch options that a wrapper would give it."""

    name: str
    kernel: triton.JITFunction
    dtype: str
    constants: Mapping[str, int]
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Resources:
    """What one program of a compiled kernel uses, and which instructions it is made of."""

    name: str
    warps: int
    registers: int  # per thread
    stack_bytes: int  # per thread; above zero: spilled registers
    shared_bytes: int  # per program, the 1 KiB that the system reserves included
    wgmma: int  # warp-group matrix instructions (Hopper's)
    mma: int  # warp matrix instructions
    async_copies: int


def _attention_constants(tile: Tile, dim: int, group: int, block_tokens: int) -> dict[str, int]:
    sizes = {"GROUP": group, "ROWS": tile.rows, "COLUMNS": tile.columns}
    return sizes | {"DIM": dim, "DIM_PADDED": next_power_of_2(dim), "BLOCK_TOKENS": block_tokens}


def _decode_configuration(dtype: str, dim: int, group: int, block_tokens: int = 16) -> Configuration:
    tile = decode_tile(group, ELEMENT_BYTES[dtype])
    constants = _attention_constants(tile, dim, group, block_tokens)
    return Configuration(f"decode {dtype} D{dim} G{group}", decode._decode, dtype, constants, tile.warps, tile.stages)


def _prefill_configuration(dtype: str, dim: int, group: int, block_tokens: int = 16) -> Configuration:
    tile = prefill_tile(dim, group, ELEMENT_BYTES[dtype])
    constants = _attention_constants(tile, dim, group, block_tokens) | {"TOKENS": tile.rows // group}
    return Configuration(f"prefill {dtype} D{dim} G{group}", prefill._prefill, dtype, constants, tile.warps, tile.stages)


def shipped() -> list[Configuration]:
    """The configurations that the wrappers launch for the head sizes and groups of common models."""
    heads, dim = 8, 128
    width = next_power_of_2(heads * dim)
    store_constants = {"HEADS": heads, "DIM": dim, "BLOCK_TOKENS": 16, "WIDTH": width}
    store_constants["ROWS"] = store_kv.rows_per_program(width)
    merge_constants = {"DIM": 128, "DIM_PADDED": 128, "SPLITS_PADDED": decode.MAX_SPLITS}
    return [
        Configuration(f"store_kv bf16 H{heads} D{dim}", store_kv._store_kv, "bf16", store_constants, 4, 3),
        *(_decode_configuration("bf16", dim, group) for dim, group in ((64, 3), (80, 4), (96, 4), (128, 4), (128, 8))),
        _decode_configuration("fp16", 128, 4, block_tokens=64),
        _decode_configuration("fp32", 128, 4),
        Configuration("decode merge bf16 D128", decode._merge, "bf16", merge_constants, 4, 3),
        *(_prefill_configuration("bf16", dim, group) for dim, group in ((64, 3), (80, 4), (96, 4), (128, 4))),
        _prefill_configuration("bf16", 128, 7, block_tokens=64),
        _prefill_configuration("fp32", 128, 4),
    ]


def _argument_type(configuration: Configuration, argument: str) -> str:
    if argument in configuration.constants:
        return "constexpr"
    if not argument.endswith("_ptr"):
        return "fp32" if argument.startswith("scale") else "i32"
    stem = argument.removesuffix("_ptr")
    if stem.startswith("partial"):
        return "*fp32"
    return POINTER_TYPES.get(stem, f"*{configuration.dtype}")


def _source(configuration: Configuration) -> ASTSource:
    signature = {name: _argument_type(configuration, name) for name in configuration.kernel.arg_names}
    constants, attributes = {}, {}
    for index, (name, kind) in enumerate(signature.items()):
        if kind == "constexpr":
            constants[(index,)] = configuration.constants[name]
        elif kind.startswith("*") or (kind == "i32" and name not in ODD_INTEGERS):
            # Without this, loads are not vectorised and the report would not be about what a GPU runs.
            attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(configuration.kernel, signature, constants, attributes)


def _usage(cubin: bytes) -> dict[str, int]:
    """REG, STACK, SHARED and the rest of `cuobjdump -res-usage`, from the tool that triton brings."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        answer = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True)
    usage = {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", answer.stdout)}
    if not {"REG", "STACK", "SHARED"} <= usage.keys():
        raise KernelError(f"cuobjdump did not report REG, STACK and SHARED: {answer.stdout!r}")
    return usage


def measure(configuration: Configuration) -> Resources:
    """Compile one configuration for Hopper and read what it uses."""
    # Fusion of multiply and add is stated because triton's default for it changes between releases.
    options = {"num_warps": configuration.warps, "num_stages": configuration.stages, "enable_fp_fusion": True}
    compiled = triton.compile(_source(configuration), target=HOPPER, options=options)
    usage = _usage(compiled.asm["cubin"])
    ptx = compiled.asm["ptx"]
    return Resources(
        name=configuration.name,
        warps=configuration.warps,
        registers=usage["REG"],
        stack_bytes=usage["STACK"],
        shared_bytes=usage["SHARED"] + compiled.metadata.shared,  # the binary lists only the static part
        wgmma=ptx.count("wgmma.mma_async"),
        mma=len(re.findall(r"(?<!wg)mma\.sync\.aligned", ptx)),
        async_copies=len(re.findall(r"cp\.async\.c[ag]\.", ptx)),
    )


def to_table(report: Sequence[Resources]) -> str:
    """The report for people, one line per configuration."""
    head = f"{'kernel':24} {'warps':>5} {'regs':>5} {'stack':>5} {'shared KiB':>10} {'wgmma':>5} {'mma':>5} {'cp.async':>8}"
    lines = [
        f"{r.name:24} {r.warps:5} {r.registers:5} {r.stack_bytes:5} {r.shared_bytes / 1024:10.1f} {r.wgmma:5} {r.mma:5} "
        f"{r.async_copies:8}"
        for r in report
    ]
    return "\n".join([f"triton {triton.__version__}, sm_{HOPPER.arch}", head, *lines])


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m kernels.compile_report`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kernels.compile_report", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args(argv)
    if triton.knobs.runtime.interpret:
        sys.stderr.write("error: TRITON_INTERPRET is set, so there is nothing to compile: unset it\n")
        return 2
    report = [measure(configuration) for configuration in shipped()]
    as_data = {"triton": triton.__version__, "arch": HOPPER.arch, "kernels": [asdict(r) for r in report]}
    sys.stdout.write((json.dumps(as_data) if args.json else to_table(report)) + "\n")
    spilled = [r.name for r in report if r.stack_bytes or r.shared_bytes > SHARED_LIMIT_BYTES]
    if spilled:
        sys.stderr.write(f"error: spills or too much shared memory in {', '.join(spilled)}\n")
    return 1 if spilled else 0


if __name__ == "__main__":
    sys.exit(main())
