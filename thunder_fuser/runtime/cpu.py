# SPDX-License-Identifier: Apache-2.0
"""A C++ kernel -> a function of this process.

The kernel's last argument is the number of OpenMP threads.
"""

import ctypes
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Importing torch loads its OpenMP runtime. The kernels find it by name, so both share one pool of
# threads.
import torch  # noqa: F401

from thunder_fuser.codegen.prelude.libm import vector_functions
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.errors import OutOfRangeError
from thunder_fuser.runtime.toolchain import (
    find_compiler,
    library,
    library_recipe,
    load_library,
)
from thunder_fuser.store.entry import Recipe

# Never -ffast-math: it breaks inf and NaN, and a library linked with it makes the process flush
# subnormals to zero. No contraction, so that a mul and an add round twice, as in torch.
FLAGS = (
    "-O3", "-march=native", "-fPIC", "-shared", "-std=c++17", "-fopenmp",
    "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-Wno-psabi",
)  # fmt: skip

# Without the cost model g++ 12 vectorises every simd loop: a bf16 transpose of 4096 columns took
# 2.5 s instead of 37 ms, because it loaded whole rows and shuffled them. clang has one by default.
# gcc moves a function of one arm of a choice behind a branch, and then vectorizes neither: with
# tree-sink elu took 8 times as long as without.
# Linking takes 7 ms instead of 20 without the libraries that g++ adds; a kernel needs libc and two.
GCC_FLAGS = ("-fsimd-cost-model=dynamic", "-fno-tree-sink", "-nodefaultlibs")
GCC_LIBRARIES = ("-lgomp", "-lgcc")  # libc's functions are this process's

# On a CPU with 512-bit vectors, loops then call a math function for all 16 lanes. Otherwise they
# use 8 lanes of a function that computes 16: exp of a row took 1.4 ms instead of 0.2.
X86_FLAGS = ("-mprefer-vector-width=512",)


@dataclass(frozen=True, slots=True)
class CpuKernel:
    """A loaded kernel: `function(*addresses_and_scalars, threads)`."""

    source: KernelSource
    function: Callable[..., None]


def build_cpu(source: KernelSource) -> None:
    """Builds a kernel of the cpu dialect, so that `compile_cpu` finds its binary."""
    library(library_recipe_of(source))


def compile_cpu(source: KernelSource) -> CpuKernel:
    """Builds and loads a kernel of the cpu dialect."""
    library = load_library(source.name, source.text, _flags())
    failed = [ctypes.c_void_p] if source.checks else []
    arguments = [*(param.argument_type for param in source.params), *failed, ctypes.c_int]
    function = library.function(library.name, arguments)
    return CpuKernel(source, _checked(source, function) if source.checks else function)


def library_recipe_of(source: KernelSource) -> Recipe:
    """The recipe of a kernel's library."""
    return library_recipe(source.name, source.text, _flags())


def _checked(source: KernelSource, function: Callable[..., None]) -> Callable[..., None]:
    """The function of a kernel with index checks. It raises OutOfRangeError if a check fails."""

    def call(*arguments: Any) -> None:
        failed = (ctypes.c_int64 * 2)()
        function(*arguments[:-1], ctypes.addressof(failed), arguments[-1])
        if failed[0]:
            op, size = source.checks[failed[0] - 1]
            raise OutOfRangeError(
                f"{op}: index", expected=f"numbers from 0 to {size - 1}", got=str(failed[1])
            )

    return call


def _flags() -> list[str]:
    compiler = find_compiler()
    gcc_flags, linked = ((), ()) if compiler.is_clang else (GCC_FLAGS, GCC_LIBRARIES)
    libraries = ["-lmvec", "-lm"] if vector_functions() else ["-lm"]
    wide = X86_FLAGS if platform.machine() in ("x86_64", "AMD64") else ()
    return [*FLAGS, *gcc_flags, *wide, *compiler.kernel_flags, *libraries, *linked]
