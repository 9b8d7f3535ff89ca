# SPDX-License-Identifier: Apache-2.0
"""Thunder bound symbol -> None, or the Reject that says why it is not fused.

Each Thunder primitive has a row, and so has cumsum, which Thunder's torch executor treats as one.
Composites (softmax, layer_norm, ...) have no row: one is taken if each of its primitives is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from thunder.core import dtypes
from thunder.core.devices import Device, DeviceType
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, has_tags
from thunder.torch.experimental.dtensor_proxy import DTensorProxy

from thunder_fuser.executors.support.dtensor import DTENSOR, refuse_placements
from thunder_fuser.executors.support.dtypes import data_type
from thunder_fuser.executors.support.index_rows import INDEXING
from thunder_fuser.executors.support.pooling import POOLED, POOLING
from thunder_fuser.executors.support.products import OF_TORCH, PRODUCTS
from thunder_fuser.executors.support.random import STATELESS
from thunder_fuser.executors.support.rows import (
    MAX_RANK,
    PRIMITIVES,
    Row,
    flat,
    needs_tensor,
    refuse_numbers,
)
from thunder_fuser.executors.support.upsampling import UPSAMPLED, UPSAMPLING
from thunder_fuser.executors.support.whole_composites import refuse_composite
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.proxies import makes, reads

_TABLE = (*PRIMITIVES, *INDEXING, *PRODUCTS, *DTENSOR, *POOLED, *UPSAMPLED)
ROWS = {row.id: row for row in _TABLE}
assert len(ROWS) == len(_TABLE), "a primitive is listed twice"

_UNCLAIMED = (None, STATELESS, POOLING, UPSAMPLING)
_REDUCTIONS = frozenset({
    PrimIDs.AMAX, PrimIDs.AMIN, PrimIDs.SUM, PrimIDs.PROD, PrimIDs.VAR, PrimIDs.STD,
    PrimIDs.VAR_MEAN,
})  # fmt: skip
_NEVER = {
    "convolution": OF_TORCH,
    **dict.fromkeys(("attention_backward", "masked_attention_backward"), OF_TORCH),
    "copy_": Reject("an in-place copy, which torch makes"),
    "update_aliases": Reject("it marks where in-place copies are made"),
}
CHUNKED_LOSS = "chunkedLoss"  # begins the names of such calls (functions/chunked_loss)
ACROSS_RANKS = f"{CHUNKED_LOSS}AcrossRanks"  # of those that communicate
_DEVICES = (DeviceType.CPU, DeviceType.CUDA)


def support(bsym: BoundSymbol) -> Reject | None:
    """None if the bound symbol can be part of a fusion."""
    if bsym.sym.is_fusion:
        return Reject("it is a fusion already")
    row = row_of(bsym)
    if row is not None:
        return accepts(row, bsym.args, bsym.kwargs) or refuse_placements(bsym, row)
    if not bsym.subsymbols:
        if any(isinstance(proxy, DTensorProxy) for proxy in reads(bsym)):
            return Reject("torch runs it on DTensors, for which Thunder has no primitive to fuse")
        is_expensive = has_tags(bsym, {OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD})  # e.g. a product
        known = OF_TORCH if is_expensive else _NEVER.get(bsym.sym.name)
        if bsym.sym.name.startswith(CHUNKED_LOSS):
            known = Reject("its kernels run on a piece of the logits at a time")
        return known or Reject(f"no rule for {bsym.sym.name}")
    claimed = bsym.sym.executor is not None
    why = None if claimed else refuse_composite(bsym)
    why = why or next(filter(None, map(support, bsym.subsymbols)), None)
    # For a claimed op, the reason of a refused part says more than the claim.
    return why or (Reject(f"claimed by the executor {bsym.sym.executor.name}") if claimed else None)


def row_of(bsym: BoundSymbol) -> Row | None:
    """The row of a primitive that no other executor has claimed."""
    return ROWS.get(bsym.sym.id) if bsym.sym.executor in _UNCLAIMED else None


def accepts(row: Row, args: Sequence[Any], kwargs: dict[str, Any]) -> Reject | None:
    """None if a row takes these arguments: the checks for every row, then the row's own."""
    tensors = [arg for arg in flat(args) if isinstance(arg, TensorProxy)]
    return (
        next(filter(None, map(_refuse_value, flat((args, kwargs)))), None)
        or _refuse_tensors(row, tensors)
        or (refuse_numbers(args, tensors) if row.computes else None)
        or (row.check(*args, **kwargs) if row.check is not None else needs_tensor(tensors))
    )


def leaves_of(bsym: BoundSymbol) -> Iterator[BoundSymbol]:
    """The primitives of a supported bound symbol, in order."""
    if row_of(bsym) is not None:
        yield bsym
        return
    for part in bsym.subsymbols:
        yield from leaves_of(part)


def arguments_of(leaf: BoundSymbol) -> tuple[Any, ...]:
    """The arguments that a row records. Like torch, Thunder reduces axis 0 of a 0-dim tensor, which
    has no axis: here it reduces none."""
    if leaf.sym.id not in _REDUCTIONS or leaf.args[0].ndim:
        return tuple(leaf.args)
    return (leaf.args[0], ())


def device_of(bsym: BoundSymbol) -> Device | None:
    """The device of its tensors, on which it computes; 0-dim CPU tensors count as numbers."""
    cpu = None
    for proxy in (*makes(bsym), *reads(bsym)):
        if not isinstance(proxy, TensorProxy):
            continue
        if not _stands_for_a_number(proxy):
            return proxy.device
        cpu = proxy.device
    return cpu


def _stands_for_a_number(tensor: TensorProxy) -> bool:
    return tensor.ndim == 0 and tensor.device.devicetype is DeviceType.CPU


# ------------------------------------------------------------------------- checks for every row


def _refuse_value(value: Any) -> Reject | None:
    if isinstance(value, TensorProxy):
        return _refuse_tensor(value)
    if isinstance(value, Proxy) and not isinstance(value, NumberProxy):
        return Reject(f"operand {value.name} is a {type(value).__name__}")
    kind = value.python_type if isinstance(value, NumberProxy) else type(value)
    if kind is complex:
        return Reject("complex number")
    if isinstance(value, Device) and value.devicetype not in _DEVICES:
        return Reject(f"device {value.device_str()}")
    is_dtype = isinstance(value, (dtypes.dtype, torch.dtype))
    return Reject(f"dtype {value}") if is_dtype and data_type(value) is None else None


def _refuse_tensor(tensor: TensorProxy) -> Reject | None:
    # Other subclasses hold more than one plain tensor. For DTensors see dtensor.py.
    if type(tensor) not in (TensorProxy, DTensorProxy):
        return Reject(f"tensor {tensor.name} is a {type(tensor).__name__}")
    if tensor.device.devicetype not in _DEVICES:
        return Reject(f"device {tensor.device.device_str()}")
    if tensor.ndim > MAX_RANK:
        return Reject(f"rank {tensor.ndim} of {tensor.name} is over {MAX_RANK}")
    # `_shape`, because reading `shape` of a symbolic tensor records a bound symbol.
    if not {*map(type, tensor._shape)} <= {int}:
        return Reject(f"symbolic size of {tensor.name}")
    return None


def _refuse_tensors(row: Row, tensors: Sequence[TensorProxy]) -> Reject | None:
    for tensor in tensors:
        if data_type(tensor.dtype) not in row.dtypes:
            name = str(tensor.dtype).removeprefix("thunder.dtypes.")
            return Reject(f"{row.name} of {name}")
    devices = {t.device.device_str() for t in tensors if not _stands_for_a_number(t)}
    return Reject(f"mixed devices {', '.join(sorted(devices))}") if len(devices) > 1 else None
