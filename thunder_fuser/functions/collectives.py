# SPDX-License-Identifier: Apache-2.0
"""torch's functional collectives, with gradients. Of these Thunder knows only all_reduce.

    y = all_gather_tensor(x, 0, group)            y = wait(all_gather(x, group, do_async=True))
    its gradient dx                               reduce_scatter(dy, sum)

Thunder's passes then post the collective early and wait for it late. Thunder has no primitive for
all_to_all_single, so that is one call of torch. The gradients are those of torch's functions ending
in `_autograd`: each device has a loss, and the gradient is that of the sum of all losses. For a
maximum and a broadcast, torch has no gradient or a wrong one; here it is that of the same sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
import torch
import torch.distributed as dist
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.distributed import prims as distributed
from thunder.extend import OperatorExecutor

from thunder_fuser.errors import CommunicationError
from thunder_fuser.functions.define import Composite, Table
from thunder_fuser.thunder_patches.gradient_rules import with_gradients

_SUM, _MAX = distributed.DistributedReduceOps.SUM, distributed.DistributedReduceOps.MAX
_PREFIX = "thunder_fuser.functional."
# Not among the kernels of kernels.py: these may run on meta tensors, and be reordered.
CALLS = OperatorExecutor("thunder_fuser_communication")


# ---- the forwards


def _gathered(x: Any, dim: int, group: Any) -> Any:
    """[.., s, ..] -> [.., devices * s, ..]"""
    gathered = distributed.wait(distributed.all_gather(_first(x, dim), group, True))
    return gathered if dim == 0 else ltorch.movedim(gathered, 0, dim)


def _scattered(x: Any, reduce: str, dim: int, group: Any) -> Any:
    """[.., s, ..] -> [.., s / devices, ..]"""
    op = _MAX if reduce == "max" else _SUM
    part = distributed.wait(distributed.reduce_scatter(_first(x, dim), op, group, True))
    return _mean(part if dim == 0 else ltorch.movedim(part, 0, dim), reduce, group)


def _reduced(x: Any, reduce: str, group: Any) -> Any:
    op = _MAX if reduce == "max" else _SUM
    return _mean(distributed.wait(distributed.all_reduce(x, op, group, True)), reduce, group)


def _all_to_all(
    x: torch.Tensor, out_sizes: tuple[int, ...], in_sizes: tuple[int, ...], group: Any
) -> torch.Tensor:
    out = x.new_empty(sum(out_sizes), *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), [*out_sizes], [*in_sizes], group=group)
    return out


_exchanged = CALLS.register_operator(
    "torch_all_to_all_single", fn=_all_to_all, tags=[OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD],
    meta=lambda x, out_sizes, in_sizes, group: TensorProxy(
        like=x, shape=(sum(out_sizes), *x.shape[1:])
    ),
)  # fmt: skip


def _reduce_to(x: torch.Tensor, root: int, group: Any) -> torch.Tensor:
    out = x.clone(memory_format=torch.contiguous_format)
    dist.reduce(out, root, group=group)
    return out if dist.get_rank() == root else out.zero_()


# The same call on all ranks, so that no rank alone drops it as dead code.
_reduced_to = CALLS.register_operator(
    "torch_reduce_to", meta=lambda x, root, group: TensorProxy(like=x), fn=_reduce_to,
    tags=[OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD],
)  # fmt: skip


def _first(x: Any, dim: int) -> Any:
    """[.., s, ..] -> [s, ..], contiguous, as the backends need it; gradients may be expanded."""
    return ltorch.contiguous(x if dim == 0 else ltorch.movedim(x, dim, 0))


def _mean(x: Any, reduce: str, group: Any) -> Any:
    return ltorch.to(x / group.size(), x.dtype) if reduce == "avg" else x


# ---- gradients


def _scatter_gradient(g: Any, y: Any, x: Any, *arguments: Any) -> Any:
    reduce, dim, group = arguments
    dx = _mean(_gathered(g, dim, group), reduce, group)
    return _of_largest(dx, x, _gathered(y, dim, group), group) if reduce == "max" else dx


def _reduce_gradient(g: Any, y: Any, x: Any, reduce: str, group: Any) -> Any:
    dx = _reduced(g, "avg" if reduce == "avg" else "sum", group)
    return _of_largest(dx, x, y, group) if reduce == "max" else dx


def _of_largest(gradient: Any, x: Any, y: Any, group: Any) -> Any:
    """The gradient where x equals y, the maximum over devices; devices with equal values share it.

    Where y is NaN, no x equals it, and the gradient is NaN, as that of torch's amax is.
    """
    is_largest = ltorch.to(ltorch.eq(x, y), x.dtype)
    return gradient * is_largest / _reduced(is_largest, "sum", group)


# {name: (the forward of x and arguments, the gradient of g, y, x and the same arguments)}
_FORWARDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "all_gather": (_gathered, lambda g, y, x, dim, group: _scattered(g, "sum", dim, group)),
    "reduce_scatter": (_scattered, _scatter_gradient),
    "all_reduce": (_reduced, _reduce_gradient),
    "all_to_all": (
        _exchanged, lambda g, y, x, out_sizes, in_sizes, group: _exchanged(
            g, in_sizes, out_sizes, group
        ),
    ),
    "broadcast": (  # x of the root, a global rank, on all devices
        lambda x, root, group: distributed.wait(
            distributed.broadcast(ltorch.contiguous(x), root, group, True)
        ),
        lambda g, y, x, root, group: _reduced_to(g, root, group),
    ),
}  # fmt: skip
_SYMBOLS = {
    name: Symbol(f"functional_{name}", forward, id=_PREFIX + name)
    for name, (forward, _) in _FORWARDS.items()
}
COLLECTIVES: Table = {
    _PREFIX + name: Composite(
        lambda *args: None, forward, with_gradients(forward, gradient)
    )
    for name, (forward, gradient) in _FORWARDS.items()
}


# ---- the functions that a program calls


def _group(group: Any, tag: str = "") -> Any:
    """The process group, from any of the forms that torch accepts."""
    name = dist._functional_collectives._resolve_group_name(group, tag)
    return dist.distributed_c10d._resolve_process_group(name)


def _axis(x: Any, dim: int, group: Any, what: str, *, divides: bool) -> int:
    """The axis, counted from 0; CommunicationError if its size must divide and does not."""
    axis = dim % x.ndim
    if divides and x.shape[axis] % group.size():
        raise CommunicationError(
            f"{what}: axis {axis}", expected=f"a multiple of {group.size()} devices",
            got=f"size {x.shape[axis]}", do="pad the axis first",
        )  # fmt: skip
    return axis


def _word(reduce: str, what: str) -> str:
    """The reduction's name; CommunicationError for one that Thunder lacks."""
    word = reduce.lower()
    if word not in ("sum", "avg", "max"):
        raise CommunicationError(what, expected="sum, avg or max", got=reduce)
    return word


def all_gather_tensor(self: Any, gather_dim: int, group: Any, tag: str = "") -> Any:
    """As torch.distributed._functional_collectives.all_gather_tensor."""
    group = _group(group, tag)
    axis = _axis(self, gather_dim, group, "all_gather_tensor", divides=False)
    return _SYMBOLS["all_gather"](self, axis, group)


def reduce_scatter_tensor(
    self: Any, reduceOp: str, scatter_dim: int, group: Any, tag: str = ""
) -> Any:
    """As torch.distributed._functional_collectives.reduce_scatter_tensor."""
    group, what = _group(group, tag), "reduce_scatter_tensor"
    axis = _axis(self, scatter_dim, group, what, divides=True)
    return _SYMBOLS["reduce_scatter"](self, _word(reduceOp, what), axis, group)


def all_reduce(self: Any, reduceOp: str, group: Any, tag: str = "") -> Any:
    """As torch.distributed._functional_collectives.all_reduce."""
    return _SYMBOLS["all_reduce"](self, _word(reduceOp, "all_reduce"), _group(group, tag))


def all_to_all_single(
    self: Any, output_split_sizes: Any, input_split_sizes: Any, group: Any, tag: str = ""
) -> Any:
    """As torch.distributed._functional_collectives.all_to_all_single."""
    group, what = _group(group, tag), "all_to_all_single"
    ranks = group.size()
    if (output_split_sizes is None) != (input_split_sizes is None):
        raise CommunicationError(what, expected="the sizes of both splits, or None", got="one")
    if input_split_sizes is None:
        _axis(self, 0, group, what, divides=True)
        input_split_sizes = output_split_sizes = [self.shape[0] // ranks] * ranks
    outs, ins = tuple(output_split_sizes), tuple(input_split_sizes)
    fits = len(outs) == len(ins) == ranks and sum(ins) == self.shape[0]
    if not fits or min(*outs, *ins) < 0:
        expected = f"{ranks} sizes each, of the input {self.shape[0]} together"
        raise CommunicationError(f"{what}: axis 0", expected=expected, got=f"{ins} and {outs}")
    return _SYMBOLS["all_to_all"](self, outs, ins, group)


def broadcast(self: Any, src: int, group: Any, tag: str = "") -> Any:
    """As torch.distributed._functional_collectives.broadcast, where src counts in the group."""
    group = _group(group, tag)
    return _SYMBOLS["broadcast"](self, dist.get_global_rank(group, src), group)


def lookasides() -> dict[Callable[..., Any], Callable[..., Any]]:
    """{a function that a user's program calls: the function to call instead}."""
    if not dist.is_available():
        return {}
    calls: dict[Callable[..., Any], Callable[..., Any]] = {}
    for f in (all_gather_tensor, reduce_scatter_tensor, all_reduce, all_to_all_single, broadcast):
        for name in (f.__name__, f"{f.__name__}_autograd"):
            if function := getattr(dist._functional_collectives, name, None):
                calls[function] = f
    of_ops: dict[str, Callable[..., Any]] = {
        "all_gather_into_tensor":
            lambda x, group_size, group_name: all_gather_tensor(x, 0, group_name),
        "reduce_scatter_tensor":
            lambda x, reduce_op, group_size, group_name: reduce_scatter_tensor(
                x, reduce_op, 0, group_name
            ),
        "all_to_all_single": all_to_all_single,
        "broadcast": broadcast,
    }  # fmt: skip
    for ops in ("_c10d_functional", "_c10d_functional_autograd"):
        for name, call in of_ops.items():
            if packet := getattr(getattr(torch.ops, ops, None), name, None):
                calls |= {packet: call, packet.default: call}
    return calls
