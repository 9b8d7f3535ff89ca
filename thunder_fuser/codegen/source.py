# SPDX-License-Identifier: Apache-2.0
"""The result of a printer: a kernel's whole text, and how to launch it.

A `KernelSource` is plain data, so it can be hashed, stored on disk and compiled on another machine.
"""

import ctypes
from dataclasses import dataclass
from typing import Any, Literal

ParamKind = Literal["input", "output", "scalar", "size"]
Dialect = Literal["cuda", "cpu"]

SCALAR_CTYPES: dict[str, type[Any]] = {
    "double": ctypes.c_double,
    "float": ctypes.c_float,
    "i64": ctypes.c_int64,
    "i32": ctypes.c_int32,
    "i16": ctypes.c_int16,
    "i8": ctypes.c_int8,
    "u8": ctypes.c_uint8,
    "bool": ctypes.c_bool,
}


@dataclass(frozen=True, slots=True)
class Param:
    """One kernel parameter: a pointer to elements of type `ctype`, or a scalar or size of it.

    bytes: of memory behind a pointer. ahead: whether it is read before the kernel waits.
    """

    name: str
    ctype: str
    kind: ParamKind
    bytes: int = 0
    ahead: bool = False

    @property
    def is_pointer(self) -> bool:
        """True if the parameter is the address of an input or an output tensor."""
        return self.kind in ("input", "output")

    @property
    def argument_type(self) -> type[Any]:
        """The ctypes type of the argument in a call."""
        return ctypes.c_void_p if self.is_pointer else SCALAR_CTYPES[self.ctype]


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A self-contained kernel: prelude and function in `text`, parameters in call order.

    The binary depends on `text` alone. Calls with other sizes may share it; they differ in `grid`,
    `sizes` and `threaded`, which are given at each launch.

    sizes: the values of the last parameters, of kind "size".
    threaded: on the CPU, whether there is enough work for several threads.
    prelude: the number of characters before the kernel.
    early: in a CUDA graph it may start before the kernel before it has ended, and waits for it.
    lets_next_start: the kernel after it may start at once, so while those before it run.
    cluster: blocks of a cluster, along the grid's y; the text has this number too.
    checks: the op and the size of each index check; the first has the number 1.
    """

    name: str
    dialect: Dialect
    text: str
    params: tuple[Param, ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    smem_bytes: int = 0
    cluster: int = 1
    checks: tuple[tuple[str, int], ...] = ()
    sizes: tuple[int, ...] = ()
    threaded: bool = True
    prelude: int = 0
    early: bool = False
    lets_next_start: bool = False

    @property
    def body(self) -> str:
        """The text without the prelude."""
        return self.text[self.prelude :]
