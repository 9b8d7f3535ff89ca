# SPDX-License-Identifier: Apache-2.0
"""Attention masks computed from indices alone, as model libraries make them.

    mask = arange(S)[None, :] <= arange(L)[:, None]         is_causal
    mask = (arange(L)[:, None] >= 0).expand(L, S)           no mask
->  scaled_dot_product_attention(q, k, v, is_causal=True)   ->  torch's fastest kernels, and no mask
                                                                in memory

If a mask depends on constants alone, torch computes it once, while Thunder traces.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from thunder.core import dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, get_tracectx
from torch.utils._python_dispatch import _disable_current_modes

from thunder_fuser.executors.record.torch_function import torch_function
from thunder_fuser.executors.support.check import support
from thunder_fuser.executors.support.random import RANDOM
from thunder_fuser.functions.producers import producer, region_of
from thunder_fuser.trace.proxies import bytes_of, makes

ALL, CAUSAL = "all", "causal"
# The bytes of the largest tensor on the way to a mask: L = 32768, for comparisons of indices. Some
# three such tensors are in memory at once, as in eager torch. The time need not be bounded: torch's
# attention takes longer on a mask than torch took to make it.
_MOST_BYTES = 2**30

_KNOWN: WeakKeyDictionary[TraceCtx, dict[str, str | None]] = WeakKeyDictionary()


def kind_of(mask: TensorProxy) -> str | None:
    """ALL for a mask that is True everywhere, CAUSAL for the mask of is_causal, None for others.

    All layers of a model ask about one mask, which is computed for the first of them.
    """
    if producer(mask) is None or not dtypes.is_boolean_dtype(mask.dtype):
        return None
    known = _KNOWN.setdefault(get_tracectx(), {})
    if mask.name not in known:
        known[mask.name] = _kind_of(mask)
    return known[mask.name]


def _kind_of(mask: TensorProxy) -> str | None:
    # The program may run on fake tensors, or count calls of torch.
    with _disable_current_modes():
        values = _computed(mask)
        return None if values is None else _kind(values)


def _computed(mask: TensorProxy) -> torch.Tensor | None:
    """The mask; None if it depends on more than constants, or needs too much memory."""
    region = region_of(mask)
    if region is None or region.inputs or not all(map(_is_constant, region.leaves)):
        return None
    (values,) = torch_function(region, "mask")()
    return values  # type: ignore[no-any-return]


def _is_constant(leaf: BoundSymbol) -> bool:
    """True for a primitive that makes the same of the same operands, in little memory.

    The fuser's primitives do, but for random numbers. A broadcast needs no memory.
    """
    if support(leaf) is not None or leaf.sym.id in RANDOM:
        return False
    is_view = leaf.sym.id is PrimIDs.BROADCAST_IN_DIM
    return is_view or sum(map(bytes_of, makes(leaf))) <= _MOST_BYTES


def _kind(mask: torch.Tensor) -> str | None:
    if not mask.numel():
        return None
    if mask.all():
        return ALL
    return CAUSAL if mask.ndim > 1 and _is_causal(mask) else None


def _is_causal(mask: torch.Tensor) -> bool:
    causal = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril_()
    return torch.equal(mask, causal.expand_as(mask))
