# SPDX-License-Identifier: Apache-2.0
"""Regions on DTensors: each device computes on its local tensors, and no element moves.

    t1 = dtensor_gelu(x: Shard(1));  t2 = dtensor_mul(t1, y: Shard(1))    one region, Shard(1)
    t3 = dtensor_sum(x: Shard(0), [0], False)                             torch's: it is Partial

An op is taken if our rules (analysis/propagate.py) place its results as DTensor's own rules have,
which Thunder has noted on its proxies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.symbol import BoundSymbol
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from thunder.torch.experimental.dtensor_torch_and_prims import DTensorPrimIDs as Own
from torch.distributed.tensor import DTensor

from thunder_fuser.analysis.propagate import propagate
from thunder_fuser.cache.sharded import (
    layout_records,
    local_of,
    mesh_of,
    placements_of,
    sharding_of,
)
from thunder_fuser.errors import FuserError, InputError
from thunder_fuser.executors.dtensor_prims import PREFIX
from thunder_fuser.executors.rows import Row
from thunder_fuser.executors.types import FLOATS, MATH, NUMBERS, STORED, known_type
from thunder_fuser.ir.build import define
from thunder_fuser.ir.language import Recorder
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.record import Definition, OpRecord
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.proxies import makes, reads

Runner = Callable[..., Sequence[Any]]


# ---------------------------------------------------------------------------------- the table


def _op(name: str) -> Callable[..., Any]:
    return lambda fd, *args: getattr(fd.ops, name)(*args)


def _cast(fd: Recorder, a: Any, dtype: Any) -> Any:
    return fd.ops.cast(a, known_type(dtype))


def _sum(fd: Recorder, a: Any, dims: Sequence[int], keepdim: bool) -> Any:
    return fd.ops.sum(a, list(dims), keepdim)


def _expand(fd: Recorder, a: Any, shape: Sequence[int]) -> Any:
    return fd.ops.expand(a, list(shape))


def _broadcast(fd: Recorder, a: Any, shape: Sequence[int], dims: Sequence[int]) -> Any:
    return fd.ops.broadcast_in_dim(a, list(shape), list(dims))


def _reshape(fd: Recorder, a: Any, shape: Sequence[int]) -> Any:
    return fd.ops.reshape(a, list(shape))


def _relu_backward(fd: Recorder, g: Any, y: Any) -> Any:
    return fd.ops.where(fd.ops.gt(y, 0), g, 0.0)


_ROOT, _CUBE = math.sqrt(2 / math.pi), 0.044715


def _gelu(fd: Recorder, a: Any, kind: str) -> Any:
    ops = fd.ops
    if kind == "none":
        return ops.mul(ops.mul(a, 0.5), ops.add(ops.erf(ops.mul(a, math.sqrt(0.5))), 1.0))
    return ops.mul(ops.mul(a, 0.5), ops.add(ops.tanh(_inner(fd, a)), 1.0))


def _inner(fd: Recorder, a: Any) -> Any:
    """sqrt(2 / pi) * (a + 0.044715 a^3)"""
    ops = fd.ops
    cube = ops.mul(ops.mul(ops.mul(a, a), a), _CUBE)
    return ops.mul(ops.add(a, cube), _ROOT)


def _gelu_backward(fd: Recorder, g: Any, a: Any, kind: str) -> Any:
    ops = fd.ops
    if kind == "none":
        below = ops.mul(ops.add(ops.erf(ops.mul(a, math.sqrt(0.5))), 1.0), 0.5)
        density = ops.mul(ops.exp(ops.mul(ops.mul(a, a), -0.5)), 1 / math.sqrt(2 * math.pi))
        return ops.mul(g, ops.add(below, ops.mul(a, density)))
    t = ops.tanh(_inner(fd, a))
    slope = ops.mul(ops.add(ops.mul(ops.mul(a, a), 3 * _CUBE), 1.0), _ROOT)
    rising = ops.mul(ops.mul(ops.mul(a, 0.5), ops.sub(1.0, ops.mul(t, t))), slope)
    return ops.mul(g, ops.add(ops.mul(ops.add(t, 1.0), 0.5), rising))


def _softmax(fd: Recorder, a: Any, dim: int) -> Any:
    powers = fd.ops.exp(fd.ops.sub(a, fd.ops.max(a, [dim], True)))
    return fd.ops.truediv(powers, fd.ops.sum(powers, [dim], True))


def _softmax_backward(fd: Recorder, g: Any, y: Any, dim: int) -> Any:
    total = fd.ops.sum(fd.ops.mul(g, y), [dim], True)
    return fd.ops.mul(fd.ops.sub(g, total), y)


def _last(shape: Sequence[int]) -> list[int]:
    return list(range(-len(shape), 0))


def _norm(fd: Recorder, x: Any, shape: Sequence[int], *rest: Any) -> Any:
    ops, (w, b, eps) = fd.ops, rest
    variance, mean = ops.var_mean(x, _last(shape), 0, True)
    rstd = ops.rsqrt(ops.add(variance, eps))
    y = ops.mul(ops.sub(x, mean), rstd)
    y = y if w is None else ops.mul(y, w)
    return (y if b is None else ops.add(y, b)), mean, rstd


def _norm_input_gradient(
    fd: Recorder, g: Any, x: Any, shape: Sequence[int], *statistics: Any
) -> Any:
    """rstd * (gw - mean(gw) - n * mean(gw * n)), with gw = g * w and n = (x - mean) * rstd"""
    mean, rstd, w = statistics
    ops, axes, count = fd.ops, _last(shape), math.prod(shape)
    gw = g if w is None else ops.mul(g, w)
    normal = ops.mul(ops.sub(x, mean), rstd)
    first = ops.mul(ops.sum(gw, axes, True), 1 / count)
    second = ops.mul(ops.sum(ops.mul(gw, normal), axes, True), 1 / count)
    return ops.mul(ops.sub(ops.sub(gw, first), ops.mul(normal, second)), rstd)


def _norm_weight_gradient(
    fd: Recorder, g: Any, x: Any, shape: Sequence[int], *statistics: Any
) -> Any:
    """sum of g * (x - mean) * rstd over all rows"""
    mean, rstd = statistics
    ops, rank = fd.ops, len(fd.view_of(x.name).shape)
    normal = ops.mul(ops.sub(x, mean), rstd)
    return ops.sum(ops.mul(g, normal), list(range(rank - len(shape))))


def _ours(name: str) -> str:
    return PREFIX + "dtensor_" + name


DTENSOR = (
    Row(Own.CONVERT_ELEMENT_TYPE, _cast, STORED),
    Row(Own.RESHAPE, _reshape, STORED),
    Row(Own.TRANSPOSE, _op("permute"), STORED),
    Row(Own.BROADCAST_IN_DIM, _broadcast, STORED),
    Row(Own.EXP, _op("exp"), MATH),
    Row(Own.NEG, _op("neg"), NUMBERS),
    Row(Own.RECIPROCAL, _op("reciprocal"), MATH),
    Row(Own.ADD, _op("add"), NUMBERS),
    Row(Own.MUL, _op("mul"), NUMBERS),
    Row(_ours("sub"), _op("sub"), NUMBERS),
    Row(_ours("div"), _op("truediv"), NUMBERS),
    Row(_ours("tanh"), _op("tanh"), FLOATS),
    Row(_ours("relu"), _op("relu"), NUMBERS),
    Row(_ours("relu_backward"), _relu_backward, FLOATS),
    Row(_ours("sigmoid"), _op("sigmoid"), FLOATS),
    Row(_ours("sum"), _sum, NUMBERS),
    Row(_ours("expand"), _expand, STORED),
    Row(_ours("gelu"), _gelu, FLOATS),
    Row(_ours("gelu_backward"), _gelu_backward, FLOATS),
    Row(_ours("softmax"), _softmax, FLOATS),
    Row(_ours("softmax_backward"), _softmax_backward, FLOATS),
    Row(_ours("layer_norm"), _norm, FLOATS),
    Row(_ours("layer_norm_input_gradient"), _norm_input_gradient, FLOATS),
    Row(_ours("layer_norm_weight_gradient"), _norm_weight_gradient, FLOATS),
)


# ------------------------------------------------------------------------------- the questions


def mesh_of_call(bsym: BoundSymbol) -> Mesh | None:
    """The mesh of what a bound symbol reads and makes; None if it is of plain tensors."""
    for proxy in (*reads(bsym), *makes(bsym)):
        if isinstance(proxy, DTensorProxy):
            return Mesh.of(proxy.device_mesh.mesh.tolist())
    return None


def refuse_placements(bsym: BoundSymbol, row: Row) -> Reject | None:
    """Why an op on DTensors is not one on their local tensors; None if it is."""
    args = [p for p in reads(bsym) if isinstance(p, TensorProxy)]
    outs = list(makes(bsym))
    if not any(isinstance(p, DTensorProxy) for p in (*args, *outs)):
        return None
    if not all(isinstance(p, DTensorProxy) for p in (*args, *outs)):
        return Reject("DTensors beside plain tensors")
    given = list({p.name: p for p in args}.values())
    try:
        fusion = define(sharded(_alone(bsym, row, given), given))
        spread = propagate(fusion)
        (mesh,) = {mesh_of(p) for p in (*given, *outs)}
        for proxy, output in zip(outs, fusion.outputs, strict=True):
            wanted = tuple(proxy.placements)
            if placements_of(spread[output.name], mesh) != wanted:
                return Reject(f"its result is placed {wanted}")
    except (FuserError, ValueError) as error:
        return Reject(" ".join(str(error).split()))
    return None


def _alone(bsym: BoundSymbol, row: Row, given: Sequence[DTensorProxy]) -> Definition:
    """One op on whole tensors."""
    fd = Recorder()
    env = {
        p.name: fd.define_tensor(tuple(map(int, p.shape)), None, known_type(p.dtype)) for p in given
    }
    made = row.record(fd, *tree_map(lambda a: _stand_in(a, env), tuple(bsym.args)))
    for value in made if isinstance(made, tuple) else (made,):
        fd.add_output(fd.ops.set(value))
    return fd.definition


def _stand_in(value: Any, env: dict[str, Any]) -> Any:
    if isinstance(value, NumberProxy):
        return value.value
    return env[value.name] if isinstance(value, TensorProxy) else value


def sharded(definition: Definition, inputs: Sequence[Any]) -> Definition:
    """A region's definition with the placements of its DTensors."""
    names = [r.outputs[0] for r in definition if r.op in ("define_tensor", "define_scalar")]
    records: list[OpRecord] = []
    for name, proxy in zip(names, inputs, strict=True):
        if isinstance(proxy, DTensorProxy):
            records += layout_records(name, mesh_of(proxy), sharding_of(proxy.name, proxy))
    return (*definition, *records)


# --------------------------------------------------------------------------------- the call


def on_locals(run: Runner, inputs: Sequence[Any], outputs: Sequence[Any]) -> Runner:
    """A function of local tensors as one of DTensors, placed as the trace has them."""
    wanted = [p.spec._o if isinstance(p, DTensorProxy) else None for p in inputs]
    made = [p.spec._o for p in outputs]

    def call(*args: Any) -> list[Any]:
        local = [_local(arg, spec) for arg, spec in zip(args, wanted, strict=True)]
        results = run(*local)
        return [
            DTensor(result, spec, requires_grad=False)
            for result, spec in zip(results, made, strict=True)
        ]

    return call


def _local(arg: Any, spec: Any) -> Any:
    if spec is None:
        return arg
    if arg._spec.placements != spec.placements or arg._spec.mesh != spec.mesh:
        raise InputError(
            "a region's argument", expected=f"placements {spec.placements} on {spec.mesh}",
            got=f"{arg._spec.placements} on {arg._spec.mesh}",
        )  # fmt: skip
    return local_of(arg)


def on_dtensors(run: Runner, inputs: Sequence[Any]) -> Runner:
    """A function of DTensors as one of local tensors; the inverse of `on_locals`."""
    specs = [p.spec._o if isinstance(p, DTensorProxy) else None for p in inputs]

    def call(*args: Any) -> list[Any]:
        pairs = zip(args, specs, strict=True)
        given = [a if s is None else DTensor(a, s, requires_grad=False) for a, s in pairs]
        return [result._local_tensor for result in run(*given)]

    return call
