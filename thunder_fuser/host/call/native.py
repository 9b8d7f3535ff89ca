# SPDX-License-Identifier: Apache-2.0
"""Builds the warm path in C (native.cpp) with the system's compiler, and keeps it in the store.

    dispatch(...)  ->  a callable that finds the program of a plain call
    empty(...)     ->  a callable that allocates one result
    launch(...)    ->  a callable that enqueues a CUDA kernel, or runs a CPU kernel
    check(...)     ->  a callable that says whether tensors are like those of a trace (checks.cpp)

Without a compiler or Python's headers, generated Python does the same.
"""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.errors import FuserError, OptionError, ToolchainError
from thunder_fuser.host.ranges import ranged
from thunder_fuser.options import option
from thunder_fuser.runtime.cuda import PACK_FORMATS, CudaKernel, launch_address
from thunder_fuser.runtime.toolchain import Library, load_library

FLAGS = ("-O2", "-fPIC", "-shared", "-std=c++17", "-Wno-invalid-offsetof")
SOURCES = ("native.cpp", "checks.cpp")
STORAGE_OFFSET = 16
# In the order of native.cpp's Torch.
SYMBOLS = {
    "libtorch_cpu.so": (
        "aoti_torch_get_dim", "aoti_torch_get_sizes", "aoti_torch_get_strides",
        "aoti_torch_get_data_ptr", "aoti_torch_get_layout", "aoti_torch_get_dtype",
        "aoti_torch_get_device_type", "aoti_torch_get_device_index",
        "_ZN2at6native6is_negERKNS_6TensorE", "_ZN2at6native7is_conjERKNS_6TensorE",
        "aoti_torch_empty_strided", "aoti_torch_delete_tensor_object",
        "_ZN2at15get_num_threadsEv", "_ZN5torch8profiler4impl15profilerEnabledEv",
    ),
    "libtorch_python.so": ("_Z16THPVariable_WrapRKN2at10TensorBaseE",),
    "libtorch_cuda.so": ("aoti_torch_get_current_cuda_stream",),
    "libc10.so": ("_ZNK3c1010TensorImpl13requires_gradEv",),
}  # fmt: skip

Make = Callable[[tuple[Any, ...]], Any]
NativeLaunch = Callable[..., None]
Check = Callable[..., bool]
PLAIN = (torch.Tensor, torch.nn.Parameter)


class Native(NamedTuple):
    """The functions that make the callables. Each takes one tuple; native.cpp lists its items."""

    library: Library
    dispatch: Make
    empty: Make
    launch: Make
    check: Make


def native() -> Native | None:
    """The functions in C. None if the option native_calls is off, or they cannot be built here."""
    return _built()[0] if option("native_calls") else None


def empty_in_c(
    sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Callable[[], torch.Tensor] | None:
    """A function that allocates such a tensor at each call; None if C cannot."""
    in_c = native()
    if in_c is None:
        return None
    in_python = partial(torch.empty_strided, sizes, strides, dtype=dtype, device=device)
    sample = torch.empty(0, dtype=dtype, device=device)
    return in_c.empty((in_python, sample, sizes, strides))  # type: ignore[no-any-return]


def cpu_launch(source: KernelSource, function: Callable[..., None]) -> NativeLaunch | None:
    """A function that calls a CPU kernel with tensors and integers; None if C cannot."""
    in_c, kinds = native(), _kinds(source)
    if in_c is None or source.checks or kinds.strip(b"pq"):
        return None

    def in_python(*values: Any) -> None:
        threads = torch.get_num_threads() if source.threaded else 1
        function(*_addresses(values), *source.sizes, threads)

    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    dims = (0,) * 7
    return in_c.launch(  # type: ignore[no-any-return]
        (ranged(source.name, in_python), kinds, source.sizes, address, 0, 0, dims, source.threaded)
    )


def cuda_launch(kernel: CudaKernel) -> NativeLaunch | None:
    """A function that enqueues a CUDA kernel, with tensors and numbers, on torch's current stream;
    None if C cannot."""
    source, index = kernel.source, kernel.device_index
    in_c, kinds = native(), _kinds(source)
    if in_c is None or kinds.strip(b"pqdf"):
        return None

    def in_python(*values: Any) -> None:
        stream = torch._C._cuda_getCurrentRawStream(index)
        kernel.launch(stream, (*_addresses(values), *source.sizes))

    return in_c.launch(  # type: ignore[no-any-return]
        (in_python, kinds, source.sizes, int(kernel.function), launch_address(), index,
         kernel.dims, False)
    )  # fmt: skip


def _kinds(source: KernelSource) -> bytes:
    """A letter for each value of a call: p for a pointer, else that of Python's struct module."""
    params = [param for param in source.params if param.kind != "size"]
    return "".join("p" if p.is_pointer else PACK_FORMATS[p.ctype][0] for p in params).encode()


def _addresses(values: Sequence[Any]) -> list[Any]:
    return [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in values]


def why_not_native() -> str:
    """Why the C code cannot be built; empty if it can."""
    return _built()[1]


@cache
def _built() -> tuple[Native | None, str]:
    try:
        addresses, strided = _torch_functions()
        _check_tensors()
        text = "".join(Path(__file__).with_name(name).read_text("utf-8") for name in SOURCES)
        library = load_library("native_calls", text, (*FLAGS, f"-I{sysconfig.get_path('include')}"))
    except OptionError:
        raise  # it is not remembered: the next call may have other options
    except FuserError as error:
        return None, " ".join(str(error).splitlines()[:2])
    types = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object, ctypes.c_int)
    # A stored library of equal content may have the function under another name.
    prepare = ctypes.PYFUNCTYPE(ctypes.py_object, *types)(library.address(library.name))
    prepare(ctypes.addressof(addresses), torch.Tensor, torch.nn.Parameter, strided)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)
    makers = (make(library.address(f"make_{name}")) for name in Native._fields[1:])
    return Native(library, *makers), ""


def _torch_functions() -> tuple[ctypes.Array[ctypes.c_void_p], int]:
    """The addresses of SYMBOLS, and the number of the strided layout."""
    folder = Path(torch.__file__).parent / "lib"
    table = []
    try:
        for file, names in SYMBOLS.items():
            here = "cuda" not in file or (folder / file).exists()
            library = ctypes.CDLL(str(folder / file)) if here else None
            table += [ctypes.cast(library[n], ctypes.c_void_p) if library else None for n in names]
        strided = ctypes.CDLL(str(folder / "libtorch_cpu.so")).aoti_torch_layout_strided()
    except (OSError, AttributeError) as error:
        raise ToolchainError(f"torch {torch.__version__}: {error}") from error
    return (ctypes.c_void_p * len(table))(*table), strided


def _check_tensors() -> None:
    """ToolchainError unless a tensor has the memory layout that native.cpp expects.

    After Python's header comes the address of the tensor's body. The body has the address of the
    storage at STORAGE_OFFSET, or 0 if there is none.
    """
    plain = torch.ones(2, device="cpu")
    sparse = plain.to_sparse()
    bodies = [_word(id(tensor) + object.__basicsize__) for tensor in (plain, sparse)]
    storages = [_word(tensor._cdata + STORAGE_OFFSET) for tensor in (plain, sparse)]
    layout = (bodies, storages)
    if layout != ([plain._cdata, sparse._cdata], [plain.untyped_storage()._cdata, 0]):
        raise ToolchainError(f"torch {torch.__version__}: tensors have another layout in memory")


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


# ---- whether tensors are like those for which a trace was made


class Like(NamedTuple):
    """The properties of a tensor that are compared. device: without an index for the CPU."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


def make_check(wanted: Sequence[Like]) -> Check:
    """A function of that many tensors: in C (checks.cpp) if it can be built, else in Python. It is
    False for anything but a plain strided tensor: for a subclass, a sparse tensor, or one inside a
    transform of torch.func. It does not look at strides, which are in the key of a region."""
    return _in_c(wanted) or _in_python(wanted)


def _in_c(wanted: Sequence[Like]) -> Check | None:
    in_c = native()
    if in_c is None:
        return None
    samples = {like[1:3]: torch.empty(0, dtype=like.dtype, device=like.device) for like in wanted}
    rows = tuple((samples[like[1:3]], like.requires_grad, like.shape) for like in wanted)
    return in_c.check(rows)  # type: ignore[no-any-return]


def _in_python(wanted: Sequence[Like]) -> Check:
    return lambda *tensors: len(tensors) == len(wanted) and all(map(_is_like, tensors, wanted))


def _is_like(value: object, like: Like) -> bool:
    return (
        type(value) in PLAIN
        and isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
        and (value.shape, value.dtype, value.device, value.requires_grad) == like
    )
