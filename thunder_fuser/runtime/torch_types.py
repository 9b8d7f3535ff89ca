# SPDX-License-Identifier: Apache-2.0
"""Converts torch's dtypes, devices and ranks to those of the stages, which do not import torch."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import torch
import torch.distributed as dist

from thunder_fuser.errors import DtypeError, MeshError
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.target import A100, H100, H200, Target

_TORCH = {
    DataType.Bool: torch.bool,
    DataType.UInt8: torch.uint8,
    DataType.Int8: torch.int8,
    DataType.Int16: torch.int16,
    DataType.Int32: torch.int32,
    DataType.Int: torch.int64,
    DataType.Float8_e4m3fn: torch.float8_e4m3fn,
    DataType.Float8_e5m2: torch.float8_e5m2,
    DataType.Float8_e8m0fnu: torch.float8_e8m0fnu,
    DataType.Half: torch.float16,
    DataType.BFloat16: torch.bfloat16,
    DataType.Float: torch.float32,
    DataType.Double: torch.float64,
    DataType.ComplexFloat: torch.complex64,
    DataType.ComplexDouble: torch.complex128,
}
_FUSER = {theirs: ours for ours, theirs in _TORCH.items()}


def to_torch_dtype(dtype: DataType) -> torch.dtype:
    """The torch dtype of the same elements."""
    return _TORCH[dtype]


def from_torch_dtype(dtype: torch.dtype) -> DataType:
    """The DataType of the same elements; DtypeError if the fuser has none."""
    data_type = _FUSER.get(dtype)
    if data_type is None:
        known = ", ".join(str(theirs).removeprefix("torch.") for theirs in _FUSER)
        raise DtypeError("torch dtype", expected=f"one of {known}", got=str(dtype))
    return data_type


def torch_dtype_to_nvfuser_dtype(dtype: torch.dtype | type) -> DataType:
    """The DataType of a torch dtype, or of Python's numbers: bool, int, float, complex. It has
    nvFuser's name."""
    numbers = {bool: DataType.Bool, int: DataType.Int, float: DataType.Double}
    known = {**numbers, complex: DataType.ComplexDouble}
    return known[dtype] if dtype in known else from_torch_dtype(dtype)  # type: ignore[arg-type,index]


@cache
def target_of_device(index: int) -> Target:
    """The Target of a CUDA device: the known one with its name, else A100, with its own counts."""
    facts = torch.cuda.get_device_properties(index)
    known = {"H200": H200, "H100": H100, "A100": A100}
    base = next((t for word, t in known.items() if word in facts.name), A100)
    suffix = "a" if facts.major >= 9 else ""
    return replace(
        base,
        name=facts.name,
        arch=f"sm_{facts.major}{facts.minor}{suffix}",
        sm_count=facts.multi_processor_count,
        max_threads_per_sm=facts.max_threads_per_multi_processor,
        max_cluster=max(base.max_cluster, 8) if facts.major >= 9 else 1,
        smem_bytes_per_block=facts.shared_memory_per_block_optin,
    )


def coordinate(ranks: Any, word: str) -> int:
    """The coordinate of this process along a dimension ("mesh_x", ...) of a nested mesh."""
    if not dist.is_available() or not dist.is_initialized():
        raise MeshError(
            "this process", expected="a process group for tensors on a mesh", got="none",
            do="call torch.distributed.init_process_group",
        )  # fmt: skip
    return _coordinate(ranks, word, dist.get_rank())


@lru_cache(maxsize=256)
def _coordinate(ranks: Any, word: str, rank: int) -> int:
    return Mesh.of(ranks).coordinate(rank, ParallelType(word))
