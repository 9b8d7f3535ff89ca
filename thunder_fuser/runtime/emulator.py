# SPDX-License-Identifier: Apache-2.0
"""Runs unchanged CUDA source on the CPU, with checks that a GPU does not make.

The system compiler builds the source behind `emulation/emulator.h`, which defines the hardware's
functions. `emulation/emulator.cpp` runs the threads as fibers. A kernel that breaks a rule raises
`EmulatorError`: bounds, alignment, uninitialised shared memory, a race, diverging barriers, an
endless loop.
"""

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any, TypeAlias

import torch
from torch._prims_common import compute_required_storage_length

from thunder_fuser.base.threads import make_lock
from thunder_fuser.codegen.prelude import fragment, identifiers, libm
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.errors import EmulatorError
from thunder_fuser.runtime.toolchain import (
    Compiler,
    Library,
    find_compiler,
    library,
    library_recipe,
    load_library,
)

Argument: TypeAlias = torch.Tensor | int | float

MAX_THREADS = 1024
MAX_CLUSTER = 16
MAX_SHARED_BYTES = 227 * 1024  # the limit of a block on sm_90
# Prelude fragments with hardware instructions. The emulator uses the CPU dialect's versions.
HARDWARE_SCALARS = ("bits", "half_bits", "rounding", "erfinv", "float_minmax", "approximate", "fma")
# fmt: off
RUNTIME_FLAGS = ("-O2", "-fPIC", "-shared", "-std=c++17", "-U_FORTIFY_SOURCE")
KERNEL_FLAGS = (
    "-Og", "-fPIC", "-shared", "-std=c++17", "-fno-math-errno", "-ffp-contract=off",
    "-fno-strict-aliasing", "-fno-exceptions", "-fsanitize-coverage=trace-pc",
    "-Wno-psabi", "-Wno-unknown-pragmas", "-Wno-attributes",
    "-Werror=frame-larger-than=131072",  # half a fiber's stack
)
# fmt: on
# With default libraries the compiler would link its own sanitizer runtime, which we replace.
SANITIZER_FLAGS = ("-nodefaultlibs", "-lm", "-lgcc")

# A tagged address has the parameter's number in bits 36 and up. Its base is in the middle of the
# 2^36 addresses, so that addresses below the base keep the number. Its low bits are those of the
# real address, for the alignment.
TAG_SHIFT = 36
TAG_MIDDLE = 1 << 35
PAGE_MASK = 0xFFF

# What the kernel did wrong, in the order of emulator.h's EmuErrorKind.
MESSAGES = (
    "nothing wrong",
    "{parameter}: element {index} accessed, but it has elements 0 to {last}",
    "{parameter}: vector access at element {index} is not aligned to {limit} bytes",
    "memory accessed through an address that belongs to no parameter",
    "shared memory: element {index} accessed, but the window has 0 to {last}",
    "shared memory: vector at element {index} is not aligned to {limit} bytes",
    "shared memory: element {index} read, but no thread of the block wrote it",
    "shared memory: race on element {index}, which thread {other} accessed without a barrier"
    " between",
    "the threads diverged: it is at {here}, but thread {other} is at {there}",
    "local array: element {index} accessed, which it does not have",
    "integer division by zero",
    "it runs too long: a loop without end",
    "shared memory: a window ends at byte {index}, but the launch has {limit} bytes",
    "block {index} of the cluster accessed, but it has blocks 0 to {last}",
    "block {index} of the cluster accessed before it is known that its gates are made",
    "gate {index} gets a new byte count before it has opened, or before it is made",
    "it waits at a gate that never opens",
    "a tensor of indices holds {index}, where 0 to {last} were expected",
)


# The structures of emulator.h and emulator.cpp.


def _fields(ctype: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, ctype) for name in names.split()]


class _Dim(ctypes.Structure):
    _fields_ = _fields(ctypes.c_uint, "x y z")

    def __str__(self) -> str:
        return f"({self.x}, {self.y}, {self.z})"


class _TaggedMemory(ctypes.Structure):
    _fields_ = [
        ("tagged", ctypes.c_uint64),
        ("bytes", ctypes.c_int64),
        ("data", ctypes.c_void_p),
    ]


class _Error(ctypes.Structure):
    _fields_ = [
        *_fields(ctypes.c_int, "kind parameter line other_line"),
        *_fields(_Dim, "block thread other_block other_thread"),
        *_fields(ctypes.c_longlong, "index limit"),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        *_fields(ctypes.c_void_p, "entry arguments buffers"),
        *_fields(ctypes.c_int, "buffer_count shared_bytes reverse cluster"),
        *_fields(_Dim, "grid block"),
    ]


@dataclass(frozen=True, slots=True)
class EmulatedKernel:
    """A CUDA kernel that runs on the CPU."""

    source: KernelSource
    run: Any  # the emulator's function that runs a grid
    library: Library

    def launch(self, args: Sequence[Argument], reverse: bool = False) -> None:
        """Runs the source's grid on CPU tensors. reverse: runs the threads in reverse order."""
        source = self.source
        if len(args) != len(source.params):
            raise EmulatorError(
                f"Kernel {source.name}", expected=f"{len(source.params)} arguments",
                got=f"{len(args)}",
            )
        buffers: list[_TaggedMemory] = []
        slots: list[Any] = []
        for param, arg in zip(source.params, args, strict=True):
            if param.is_pointer:
                thing = f"Kernel {source.name}, parameter {param.name}"
                buffers.append(_buffer(thing, len(buffers), arg))
                slots.append(ctypes.c_uint64(buffers[-1].tagged))
            else:
                slots.append(param.argument_type(arg))
        held = (_TaggedMemory * max(len(buffers), 1))(*buffers)
        addresses = (ctypes.c_void_p * max(len(slots), 1))(*map(ctypes.addressof, slots))
        launch = _Launch(
            self.library.address("emu_entry"), ctypes.addressof(addresses),
            ctypes.addressof(held), len(buffers), source.smem_bytes, int(reverse),
            source.cluster, _Dim(*source.grid), _Dim(*source.block),
        )  # fmt: skip
        error = _Error()
        with _LOCK:
            status = self.run(ctypes.byref(launch), ctypes.byref(error))
        if status != 0:
            raise EmulatorError(f"Kernel {source.name}: no memory for the threads' stacks")
        if error.kind:
            raise EmulatorError(_describe(source, error))


def compile_emulated(source: KernelSource) -> EmulatedKernel:
    """Builds a kernel of the cuda dialect for the CPU."""
    _check_source(source)
    compiler = find_compiler()
    bounds = "bounds" if compiler.is_clang else "bounds-strict"
    sanitizers = [f"-fsanitize={bounds},integer-divide-by-zero", *SANITIZER_FLAGS]
    flags = [*KERNEL_FLAGS, *compiler.kernel_flags, *sanitizers]
    run, beside = _runtime(compiler)
    kernel = load_library(source.name, _emulated_text(source), flags, beside)
    return EmulatedKernel(source, run, kernel)


def _check_source(source: KernelSource) -> None:
    """EmulatorError for launches that no GPU accepts, and for accesses that would be unchecked."""
    block, grid, cluster, smem = source.block, source.grid, source.cluster, source.smem_bytes
    direct = [p.name for p in source.params if p.is_pointer and _dereferences(source.text, p.name)]
    rules = (
        (source.dialect == "cuda", f"it is of the {source.dialect} dialect, not of cuda"),
        (min(block) >= 1 and prod(block) <= MAX_THREADS,
         f"block {block} is not of 1 to {MAX_THREADS} threads"),
        (1 <= cluster <= MAX_CLUSTER and grid[1] % cluster == 0,
         f"grid {grid} does not divide into clusters of {cluster} (1 to 16) along y"),
        (min(grid) >= 1, f"grid {grid} has a size below 1"),
        (0 <= smem <= MAX_SHARED_BYTES, f"smem_bytes {smem} is not in 0 to {MAX_SHARED_BYTES}"),
        (not direct, f"it dereferences {', '.join(direct)} itself, where only ld, st, ldv and stv"
         " are checked"),
    )  # fmt: skip
    for holds, problem in rules:
        if not holds:
            raise EmulatorError(f"Kernel {source.name}: {problem}")


def _dereferences(text: str, name: str) -> bool:
    """True if `T0[i]` occurs, or `*T0` outside of a declaration or a product."""
    code = re.sub(r"//[^\n]*", "", text)
    return bool(re.search(rf"\b{name}\s*\[|[=(,;{{+\-*/]\s*\*\s*\(?\s*{name}\b", code))


def _emulated_text(source: KernelSource) -> str:
    scalars = "".join(fragment("cpu", name).text for name in HARDWARE_SCALARS)
    math = libm.declarations(identifiers(source.text), vectors=False)
    slots = ", ".join(f"EmuArgument{{a[{i}]}}" for i in range(len(source.params)))
    entry = f'extern "C" void emu_entry(void** a) {{ (void)a; {source.name}({slots}); }}\n'
    line = f'#line 1 "{source.name}.cu"\n'
    return "".join([_emulation_file("emulator.h"), scalars, math, line, source.text, "\n", entry])


@cache
def _emulation_file(name: str) -> str:
    path = files("thunder_fuser.runtime") / "emulation" / name
    return path.read_text(encoding="utf-8")


@cache
def _runtime(compiler: Compiler) -> tuple[Any, Mapping[str, bytes]]:
    """(The function that runs a grid, {soname: its library} to link kernels with).

    The library stays loaded until the process ends. Its soname has a digest of its recipe.
    """
    text = _emulation_file("emulator.h") + "#undef DEVICE\n" + _emulation_file("emulator.cpp")
    unnamed = library_recipe("emu_run", text, RUNTIME_FLAGS)
    soname = f"libthunder_fuser_emulator_{unnamed.key[:16]}.so"
    flags = (*RUNTIME_FLAGS, f"-Wl,-soname,{soname}")
    types = (ctypes.POINTER(_Launch), ctypes.POINTER(_Error))
    run = load_library("emu_run", text, flags).function("emu_run", types, ctypes.c_int)
    return run, {soname: library(library_recipe("emu_run", text, flags)).code}


def _buffer(thing: str, position: int, arg: Argument) -> _TaggedMemory:
    """The memory of an argument, with a tagged address."""
    if not isinstance(arg, torch.Tensor) or arg.device.type != "cpu":
        got = f"one on {arg.device}" if isinstance(arg, torch.Tensor) else repr(arg)
        raise EmulatorError(thing, expected="a CPU tensor", got=got)
    address = arg.data_ptr()
    tag = (position + 1 << TAG_SHIFT) + TAG_MIDDLE + (address & PAGE_MASK)
    elements = compute_required_storage_length(arg.shape, arg.stride(), 0)
    return _TaggedMemory(tag, elements * arg.element_size(), address)


def _describe(source: KernelSource, error: _Error) -> str:
    pointers = [param.name for param in source.params if param.is_pointer]
    rule = MESSAGES[error.kind].format(
        parameter=pointers[error.parameter] if error.parameter >= 0 else "",
        index=error.index,
        limit=error.limit,
        last=error.limit - 1,
        other=_other(error),
        here=_place(error.line),
        there=_place(error.other_line),
    )
    where = f"Kernel {source.name}, block {error.block}, thread {error.thread}: {rule}"
    lines = source.text.splitlines()
    if 0 < error.line <= len(lines):
        where += f"\n  line {error.line}: {lines[error.line - 1].strip()}"
    return where


def _other(error: _Error) -> str:
    """The other thread, with its block if that differs."""
    if error.other_block.y == error.block.y:
        return str(error.other_thread)
    return f"{error.other_thread} of block {error.other_block}"


def _place(line: int) -> str:
    return f"the barrier or shuffle of line {line}" if line else "the end of the kernel"


_LOCK = make_lock()  # the emulator has one state in a process
