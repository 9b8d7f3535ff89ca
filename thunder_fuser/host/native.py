# SPDX-License-Identifier: Apache-2.0
"""The warm path in C (native.cpp), built once by the system's compiler and kept in the store.

    make_dispatch's parts  ->  a callable that finds the runner of a plain call in C

Without a compiler or Python's headers there is none, and the generated Python function runs.
"""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from thunder_fuser.errors import FuserError, ToolchainError
from thunder_fuser.runtime.toolchain import load_library

FLAGS = ("-O2", "-fPIC", "-shared", "-std=c++17")
SYMBOLS = (
    "aoti_torch_get_dim", "aoti_torch_get_sizes", "aoti_torch_get_strides",
    "aoti_torch_get_data_ptr", "aoti_torch_get_layout", "aoti_torch_get_dtype",
    "aoti_torch_get_device_type", "aoti_torch_get_device_index",
    "_ZN2at6native6is_negERKNS_6TensorE", "_ZN2at6native7is_conjERKNS_6TensorE",
)  # fmt: skip


STORAGE_OFFSET = 16

Make = Callable[[tuple[Any, ...]], Any]


def make_native() -> Make | None:
    """The function that makes a dispatch of (kinds, runners, miss, keep, general, checked).

    None if it cannot be built here.
    """
    return _built()[0]


def why_not_native() -> str:
    """Why it cannot be built; empty if it can."""
    return _built()[1]


@cache
def _built() -> tuple[Make | None, str]:
    try:
        addresses, strided = _torch_functions()
        _check_tensors()
        text = Path(__file__).with_name("native.cpp").read_text(encoding="utf-8")
        library = load_library("make", text, (*FLAGS, f"-I{sysconfig.get_path('include')}"))
    except FuserError as error:
        return None, " ".join(str(error).splitlines()[:2])
    types = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object, ctypes.c_int)
    start = ctypes.PYFUNCTYPE(ctypes.py_object, *types)(library.address("start"))
    start(ctypes.addressof(addresses), torch.Tensor, torch.nn.Parameter, strided)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(library.address("make"))
    make.library = library  # type: ignore[attr-defined]
    return make, ""


def _torch_functions() -> tuple[ctypes.Array[ctypes.c_void_p], int]:
    """The addresses of SYMBOLS, and the number of the strided layout."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        library = ctypes.CDLL(str(path))
        found = [ctypes.cast(library[name], ctypes.c_void_p) for name in SYMBOLS]
        strided = library.aoti_torch_layout_strided()
    except (OSError, AttributeError) as error:
        raise ToolchainError(f"torch {torch.__version__}: {error}") from error
    return (ctypes.c_void_p * len(found))(*found), strided


def _check_tensors() -> None:
    """ToolchainError if tensors lie in memory otherwise than native.cpp reads them.

    After Python's header comes the address of the tensor's body. The body has the address of the
    storage, 0 if there is none.
    """
    plain = torch.ones(2)
    sparse = plain.to_sparse()
    bodies = [_word(id(one) + object.__basicsize__) for one in (plain, sparse)]
    storages = [_word(one._cdata + STORAGE_OFFSET) for one in (plain, sparse)]
    found = (bodies, storages)
    if found != ([plain._cdata, sparse._cdata], [plain.untyped_storage()._cdata, 0]):
        raise ToolchainError(f"torch {torch.__version__}: tensors have another layout in memory")


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value
