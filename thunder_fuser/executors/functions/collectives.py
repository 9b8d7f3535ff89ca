# SPDX-License-Identifier: Apache-2.0
"""torch's functional collectives, which Thunder does not know but for all_reduce, with gradients.

    y = all_gather_tensor(x, 0, group)            y = wait(all_gather(x, group, do_async=True))
    dx of it                                      reduce_scatter(dy, sum)

Thunder's passes then post the collective early and await it late. A gradient is that of torch's
functions ending in `_autograd`: each device has a loss of its own, and all losses are added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
import torch
import torch.distributed as dist
from thunder.core.prims import get_grad, put_grad
from thunder.core.symbol import Symbol
from thunder.distributed import prims as distributed

from thunder_fuser.errors import CommunicationError
from thunder_fuser.executors.functions.define import Composite, Table

_SUM, _MAX = distributed.DistributedReduceOps.SUM, distributed.DistributedReduceOps.MAX
_PREFIX = "thunder_fuser.functional."


# ---- what each is made of


def _gathered(x: Any, dim: int, group: Any) -> Any:
    """[.., s, ..] -> [.., devices * s, ..]"""
    first = _first(x, dim)
    found = distributed.wait(distributed.all_gather(first, group, True))
    return found if dim == 0 else ltorch.movedim(found, 0, dim)


def _scattered(x: Any, reduce: str, dim: int, group: Any) -> Any:
    """[.., s, ..] -> [.., s / devices, ..]"""
    first = _first(x, dim)
    op = _MAX if reduce == "max" else _SUM
    found = distributed.wait(distributed.reduce_scatter(first, op, group, True))
    found = found if dim == 0 else ltorch.movedim(found, 0, dim)
    return _mean(found, reduce, group)


def _reduced(x: Any, reduce: str, group: Any) -> Any:
    op = _MAX if reduce == "max" else _SUM
    return _mean(distributed.wait(distributed.all_reduce(x, op, group, True)), reduce, group)


def _first(x: Any, dim: int) -> Any:
    """[.., s, ..] -> [s, ..], contiguous, as the backends want it; gradients may be expanded."""
    return ltorch.contiguous(x if dim == 0 else ltorch.movedim(x, dim, 0))


def _mean(x: Any, reduce: str, group: Any) -> Any:
    return ltorch.to(x / group.size(), x.dtype) if reduce == "avg" else x


# ---- gradients


def _gather_with_gradient(x: Any, dim: int, group: Any) -> Any:
    y = _gathered(x, dim, group)
    put_grad(x, _scattered(get_grad(y), "sum", dim, group))
    return y


def _scatter_with_gradient(x: Any, reduce: str, dim: int, group: Any) -> Any:
    y = _scattered(x, reduce, dim, group)
    put_grad(x, _mean(_gathered(get_grad(y), dim, group), reduce, group))
    return y


def _reduce_with_gradient(x: Any, reduce: str, group: Any) -> Any:
    y = _reduced(x, reduce, group)
    put_grad(x, _reduced(get_grad(y), reduce, group))
    return y


_FORWARDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "all_gather": (_gathered, _gather_with_gradient),
    "reduce_scatter": (_scattered, _scatter_with_gradient),
    "all_reduce": (_reduced, _reduce_with_gradient),
}
_SYMBOLS = {
    name: Symbol(f"functional_{name}", forward, id=_PREFIX + name)
    for name, (forward, _) in _FORWARDS.items()
}
COLLECTIVES: Table = {
    _PREFIX + name: Composite(lambda *args: None, forward, gradient)
    for name, (forward, gradient) in _FORWARDS.items()
}


# ---- what a program calls


def _group(group: Any, tag: str = "") -> Any:
    """The process group of all that torch takes for one."""
    name = dist._functional_collectives._resolve_group_name(group, tag)
    return dist.distributed_c10d._resolve_process_group(name)


def _axis(x: Any, dim: int, group: Any, what: str, *, divides: bool) -> int:
    """The axis, from 0; CommunicationError if the group does not divide it."""
    axis = dim % x.ndim
    if divides and x.shape[axis] % group.size():
        raise CommunicationError(
            f"{what}: axis {axis}", expected=f"a multiple of {group.size()} devices",
            got=f"size {x.shape[axis]}", do="pad the axis first",
        )  # fmt: skip
    return axis


def _word(reduce: str, x: Any, what: str) -> str:
    """The reduction; CommunicationError for one that Thunder lacks, or that needs a gradient."""
    word = reduce.lower()
    if word not in ("sum", "avg", "max"):
        raise CommunicationError(what, expected="sum, avg or max", got=reduce)
    if word == "max" and getattr(x, "requires_grad", False):
        do = "call it under torch.no_grad(), or on a detached tensor"
        raise CommunicationError(what, expected="sum or avg with gradients", got=reduce, do=do)
    return word


def all_gather_tensor(self: Any, gather_dim: int, group: Any, tag: str = "") -> Any:
    """As torch.distributed._functional_collectives.all_gather_tensor."""
    found = _group(group, tag)
    axis = _axis(self, gather_dim, found, "all_gather_tensor", divides=False)
    return _SYMBOLS["all_gather"](self, axis, found)


def reduce_scatter_tensor(
    self: Any, reduceOp: str, scatter_dim: int, group: Any, tag: str = ""
) -> Any:
    """As torch.distributed._functional_collectives.reduce_scatter_tensor."""
    found = _group(group, tag)
    what = "reduce_scatter_tensor"
    axis = _axis(self, scatter_dim, found, what, divides=True)
    return _SYMBOLS["reduce_scatter"](self, _word(reduceOp, self, what), axis, found)


def all_reduce(self: Any, reduceOp: str, group: Any, tag: str = "") -> Any:
    """As torch.distributed._functional_collectives.all_reduce."""
    return _SYMBOLS["all_reduce"](self, _word(reduceOp, self, "all_reduce"), _group(group, tag))


def _gather_op(x: Any, group_size: int, group_name: Any) -> Any:
    return all_gather_tensor(x, 0, group_name)


def _scatter_op(x: Any, reduce_op: str, group_size: int, group_name: Any) -> Any:
    return reduce_scatter_tensor(x, reduce_op, 0, group_name)


def lookasides() -> dict[Callable[..., Any], Callable[..., Any]]:
    """{what a user's program calls: what is called in its place}."""
    if not dist.is_available():
        return {}
    functional, found = dist._functional_collectives, {}
    for one in (all_gather_tensor, reduce_scatter_tensor, all_reduce):
        for name in (one.__name__, f"{one.__name__}_autograd"):
            if hasattr(functional, name):
                found[getattr(functional, name)] = one
    functional_ops = [torch.ops._c10d_functional]
    if hasattr(torch.ops, "_c10d_functional_autograd"):
        functional_ops.append(torch.ops._c10d_functional_autograd)
    for ops in functional_ops:
        for name, call in (
            ("all_gather_into_tensor", _gather_op), ("reduce_scatter_tensor", _scatter_op),
        ):  # fmt: skip
            packet = getattr(ops, name)
            found |= {packet: call, packet.default: call}
    return found
