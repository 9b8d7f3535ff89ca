# SPDX-License-Identifier: Apache-2.0
"""Unchanged CUDA source -> a run on the CPU, with checks that a GPU does not make.

The system compiler builds the source after `emulation/emulator.h`, which defines the hardware's
functions. `emulation/emulator.cpp` runs the threads as fibers. A kernel that breaks a rule raises
`EmulatorError`: bounds, alignment, unwritten shared memory, a race, diverging barriers, an endless
loop.
"""

import ctypes
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

import torch

from thunder_fuser.codegen.prelude import fragment, identifiers, libm
from thunder_fuser.codegen.source import KernelSource, Param
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
# The scalars with hardware instructions. The emulator uses the CPU dialect's functions.
HARDWARE_SCALARS = ("bits", "half_bits", "rounding", "erfinv", "float_minmax", "short_exp")
# fmt: off
RUNTIME_FLAGS = ("-O2", "-fPIC", "-shared", "-std=c++17", "-U_FORTIFY_SOURCE")
KERNEL_FLAGS = (
    "-O1", "-fPIC", "-shared", "-std=c++17", "-fno-math-errno", "-ffp-contract=off",
    "-fno-strict-aliasing", "-fno-exceptions", "-fsanitize-coverage=trace-pc",
    "-Wno-psabi", "-Wno-unknown-pragmas", "-Wno-attributes",
    "-Werror=frame-larger-than=131072",  # half a fiber's stack
)
# fmt: on
# No default libraries, or the compiler links its own sanitizer runtime, which we replace.
SANITIZER_FLAGS = ("-nodefaultlibs", "-lc", "-lm", "-lgcc")

# A tagged address has the parameter's number from bit 36 up. Its base is in the middle of that
# space, so that addresses below the base keep the number. Its low bits are the real address's,
# for the alignment.
TAG_SHIFT = 36
TAG_MIDDLE = 1 << 35
PAGE_MASK = 0xFFF

(
    OK,
    OUT_OF_BOUNDS,
    MISALIGNED,
    NO_PARAMETER,
    SHARED_BOUNDS,
    SHARED_MISALIGNED,
    SHARED_UNWRITTEN,
    SHARED_RACE,
    DIVERGED,
    LOCAL_BOUNDS,
    DIVISION,
    TOO_LONG,
    SHARED_WINDOW,
    NO_PEER,
    PEER_NOT_READY,
    GATE,
    STUCK,
    BAD_INDEX,
) = range(18)

MESSAGES = {
    OUT_OF_BOUNDS: "{parameter}: element {index} accessed, but it has elements 0 to {last}",
    MISALIGNED: "{parameter}: vector access at element {index} is not aligned to {limit} bytes",
    NO_PARAMETER: "memory accessed through an address that belongs to no parameter",
    SHARED_BOUNDS: "shared memory: element {index} accessed, but the window has 0 to {last}",
    SHARED_MISALIGNED: "shared memory: vector at element {index} is not aligned to {limit} bytes",
    SHARED_UNWRITTEN: "shared memory: element {index} read, but no thread of the block wrote it",
    SHARED_RACE: "shared memory: race on element {index}, which thread {other} accessed without a "
    "barrier between",
    DIVERGED: "the threads diverged: it is at {here}, but thread {other} is at {there}",
    LOCAL_BOUNDS: "local array: element {index} accessed, which it does not have",
    DIVISION: "integer division by zero",
    TOO_LONG: "it runs too long: a loop without end",
    BAD_INDEX: "a tensor of indices holds {index}, where 0 to {last} were expected",
    SHARED_WINDOW: "shared memory: a window ends at byte {index}, but the launch has {limit} bytes",
    NO_PEER: "block {index} of the cluster accessed, but it has blocks 0 to {last}",
    PEER_NOT_READY: "block {index} of the cluster accessed before it is known that its gates "
    "are made",
    GATE: "gate {index} is told what to expect again before it has opened, or before it is made",
    STUCK: "it waits at a gate that never opens",
}


class _Dim(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]

    def __str__(self) -> str:
        return f"({self.x}, {self.y}, {self.z})"


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("tagged", ctypes.c_uint64),
        ("bytes", ctypes.c_int64),
        ("data", ctypes.c_void_p),
    ]


class _Error(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int),
        ("parameter", ctypes.c_int),
        ("line", ctypes.c_int),
        ("other_line", ctypes.c_int),
        ("block", _Dim),
        ("thread", _Dim),
        ("other_block", _Dim),
        ("other_thread", _Dim),
        ("index", ctypes.c_longlong),
        ("limit", ctypes.c_longlong),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("buffer_count", ctypes.c_int),
        ("shared_bytes", ctypes.c_int),
        ("reverse", ctypes.c_int),
        ("cluster", ctypes.c_int),
        ("grid", _Dim),
        ("block", _Dim),
    ]


@dataclass(frozen=True, slots=True)
class EmulatedKernel:
    """A CUDA kernel that runs on the CPU."""

    source: KernelSource
    run: Any  # the runtime that the library is linked with
    library: Library

    def launch(self, args: Sequence[Argument], reverse: bool = False) -> None:
        """Runs the source's grid on CPU tensors. reverse: runs the threads in reverse order."""
        pointers = _pointers(self.source, args)
        buffers = (_Buffer * max(len(pointers), 1))(*map(_buffer, range(len(pointers)), pointers))
        slots = _argument_slots(self.source, args, buffers)
        addresses = (ctypes.c_void_p * max(len(slots), 1))(*map(ctypes.addressof, slots))
        launch = _Launch(
            self.library.address("emu_entry"),
            ctypes.addressof(addresses),
            ctypes.addressof(buffers),
            len(pointers),
            self.source.smem_bytes,
            int(reverse),
            self.source.cluster,
            _Dim(*self.source.grid),
            _Dim(*self.source.block),
        )
        error = _Error()
        with _LOCK:
            status = self.run(ctypes.byref(launch), ctypes.byref(error))
        if status != 0:
            raise EmulatorError(f"Kernel {self.source.name}: no memory for the threads' stacks")
        if error.kind != OK:
            raise EmulatorError(_describe(self.source, error))


def compile_emulated(source: KernelSource) -> EmulatedKernel:
    """Builds a kernel of the cuda dialect for the CPU."""
    _check_source(source)
    runtime = _runtime()
    library = load_library(source.name, _emulated_text(source), _flags(), runtime.beside)
    return EmulatedKernel(source, runtime.run, library)


def _check_source(source: KernelSource) -> None:
    block = source.block
    problems = {
        f"it is of the {source.dialect} dialect, not of cuda": source.dialect != "cuda",
        f"block {block} is not of 1 to {MAX_THREADS} threads": not (
            1 <= block[0] * block[1] * block[2] <= MAX_THREADS and min(block) >= 1
        ),
        f"grid {source.grid} does not divide into clusters of {source.cluster} (1 to 16) along y": (
            not 1 <= source.cluster <= MAX_CLUSTER or source.grid[1] % source.cluster != 0
        ),
        f"grid {source.grid} has a size below 1": min(source.grid) < 1,
        f"smem_bytes {source.smem_bytes} is not in 0 to {MAX_SHARED_BYTES}": not (
            0 <= source.smem_bytes <= MAX_SHARED_BYTES
        ),
    }
    problems |= {
        f"it dereferences {param.name} itself, where only ld, st, ldv and stv are checked": True
        for param in source.params
        if param.is_pointer and _dereferences(source.text, param.name)
    }
    for problem, present in problems.items():
        if present:
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


@dataclass(frozen=True)
class _Runtime:
    """The library that runs the threads, and the file that kernels are linked with."""

    run: Any
    beside: Mapping[str, bytes]


def _runtime() -> _Runtime:
    """The emulator's runtime, which stays loaded until the process ends."""
    return _made_runtime(find_compiler())


@cache
def _made_runtime(compiler: Compiler) -> _Runtime:
    """Compiles it. Its soname, which kernels refer to, has a digest of its recipe."""
    text = _emulation_file("emulator.h") + "#undef DEVICE\n" + _emulation_file("emulator.cpp")
    unnamed = library_recipe("emu_run", text, RUNTIME_FLAGS, {})
    soname = f"libthunder_fuser_emulator_{unnamed.key[:16]}.so"
    flags = (*RUNTIME_FLAGS, f"-Wl,-soname,{soname}")
    types = (ctypes.POINTER(_Launch), ctypes.POINTER(_Error))
    run = load_library("emu_run", text, flags).function("emu_run", types, ctypes.c_int)
    return _Runtime(run, {soname: library(library_recipe("emu_run", text, flags, {}), {})})


def _flags() -> list[str]:
    compiler = find_compiler()
    bounds = "bounds" if compiler.is_clang else "bounds-strict"
    sanitizers = [f"-fsanitize={bounds},integer-divide-by-zero", *SANITIZER_FLAGS]
    return [*KERNEL_FLAGS, *compiler.kernel_flags, *sanitizers]


def _pointers(source: KernelSource, args: Sequence[Argument]) -> list[torch.Tensor]:
    if len(args) != len(source.params):
        raise EmulatorError(
            f"Kernel {source.name}", expected=f"{len(source.params)} arguments", got=f"{len(args)}"
        )
    pairs = zip(source.params, args, strict=True)
    return [_checked_tensor(source, param, arg) for param, arg in pairs if param.is_pointer]


def _checked_tensor(source: KernelSource, param: Param, arg: Argument) -> torch.Tensor:
    if not isinstance(arg, torch.Tensor) or arg.device.type != "cpu":
        got = f"one on {arg.device}" if isinstance(arg, torch.Tensor) else repr(arg)
        raise EmulatorError(
            f"Kernel {source.name}, parameter {param.name}", expected="a CPU tensor", got=got
        )
    return arg


def _buffer(position: int, tensor: torch.Tensor) -> _Buffer:
    address = tensor.data_ptr()
    tag = (position + 1 << TAG_SHIFT) + TAG_MIDDLE + (address & PAGE_MASK)
    return _Buffer(tag, _reach(tensor) * tensor.element_size(), address)


def _reach(tensor: torch.Tensor) -> int:
    """The number of elements from the first one of a tensor to its last."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((int(size) - 1) * int(stride) for size, stride in steps)


def _argument_slots(
    source: KernelSource, args: Sequence[Argument], buffers: Iterable[_Buffer]
) -> list[Any]:
    tags = iter(buffers)
    return [
        ctypes.c_uint64(next(tags).tagged) if param.is_pointer else param.argument_type(arg)
        for param, arg in zip(source.params, args, strict=True)
    ]


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


_LOCK = threading.Lock()  # the emulator has one state in a process
