# SPDX-License-Identifier: Apache-2.0
"""The arguments of nvFuser's `execute` that choose a device and switch its passes.

They change nothing here, or are refused: a call does not ignore what would change its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder_fuser.errors import InputError, shown

# How nvFuser schedules and compiles. Here the planner decides that, and results stay the same.
_NAMES = """
compile_to_sass contig_indexing cutlass_scheduler expr_simplify fallback fuse_matmul
fuse_multiple_matmuls greedy_scheduler grouped_grid_welford_outer_opt host_ir_jit host_ir_lowering
id_model_extra_validation index_hoist infer_contiguity insert_resharding_after kernel_db
kernel_reuse magic_zero matmul_expr_eval memory_promotion nvrtc_caching nvtx parallel_compile
predicate_elimination python_inline_definitions resize_scheduler reuse_mismatched_type_registers
reuse_zeroed_memory static_fusion_count tma_inner_persistent tma_pointwise tma_reduction
var_name_remapping welford_vectorization ws_normalization
"""
WITHOUT_EFFECT = frozenset(_NAMES.split())
_INSTEAD = {
    "fma": "write the product and the sum as two definitions",
    "fast_math": "leave it out: kernels are as exact as torch",
    "io_to_lower_precision": "cast the arguments and results with ops.cast",
    "kernel_profile": "run the definition in torch.profiler",
}


def check_options(name: str, options: Sequence[str]) -> None:
    """InputError for an option that would change results or print something, and for others."""
    if isinstance(options, str) or not all(isinstance(option, str) for option in options):
        raise InputError(name, expected="a list of nvFuser's options", got=shown(options))
    for option in options:
        if option not in WITHOUT_EFFECT:
            do = _INSTEAD.get(option, "leave it out; thunder_fuser.OPTIONS has those here")
            expected = "an option of nvFuser that changes no result here"
            raise InputError(name, expected=expected, got=repr(option), do=do)


def check_same_device(device: Any, of_tensors: torch.device) -> None:
    """InputError unless the device, if any, is that of the arguments, where a fusion runs."""
    if device is None:
        return
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError):
        raise InputError("device", expected="a torch.device", got=shown(device)) from None
    index = of_tensors.index if wanted.index is None else wanted.index
    if (wanted.type, index) != (of_tensors.type, of_tensors.index):
        expected = f"{of_tensors}, the device of the arguments"
        do = "move the arguments; without tensors, results are on the CPU"
        raise InputError("device", expected=expected, got=str(wanted), do=do)
