# SPDX-License-Identifier: Apache-2.0
"""Regions on DTensors: each device computes on its local tensors, and no element moves.

    t1 = dtensor_exp(x: Shard(1));  t2 = dtensor_mul(t1, y: Shard(1))    one region, Shard(1)
    t3 = dtensor_sum(x: Shard(0), 0)                                     torch runs it

Thunder has few primitives on DTensors; torch runs what it lacks (dtensor_calls.py). One is taken
if our rules (sharding/propagate.py) give its results the placements that DTensor's own rules give,
which Thunder has noted on its proxies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.symbol import BoundSymbol
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from thunder.torch.experimental.dtensor_torch_and_prims import DTensorPrimIDs

from thunder_fuser.errors import FuserError, InputError
from thunder_fuser.executors.support.dtypes import MATH, NUMBERS, STORED, known_type
from thunder_fuser.executors.support.rows import Row, op
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.record import Definition, OpRecord
from thunder_fuser.ir.rules.build import define
from thunder_fuser.sharding.dtensors import (
    dtensor_of,
    layout_records,
    local_of,
    placement_of,
    placements_of,
)
from thunder_fuser.sharding.placements import Placement
from thunder_fuser.sharding.propagate import propagate
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.proxies import makes, reads

LocalFunction = Callable[..., Sequence[Any]]

DTENSOR = (
    Row(
        DTensorPrimIDs.CONVERT_ELEMENT_TYPE,
        lambda fd, a, dtype: fd.ops.cast(a, known_type(dtype)), STORED,
    ),
    Row(DTensorPrimIDs.RESHAPE, op("reshape"), STORED),
    Row(DTensorPrimIDs.TRANSPOSE, op("permute"), STORED),
    Row(DTensorPrimIDs.BROADCAST_IN_DIM, op("broadcast_in_dim"), STORED),
    Row(DTensorPrimIDs.EXP, op("exp"), MATH),
    Row(DTensorPrimIDs.NEG, op("neg"), NUMBERS),
    Row(DTensorPrimIDs.RECIPROCAL, op("reciprocal"), MATH),
    Row(DTensorPrimIDs.ADD, op("add"), NUMBERS),
    Row(DTensorPrimIDs.MUL, op("mul"), NUMBERS),
)  # fmt: skip


# ------------------------------------------------------------------------------- the questions


def mesh_of_call(bsym: BoundSymbol) -> Mesh | None:
    """The mesh of a bound symbol's operands and results; None if they are plain tensors."""
    proxies = (*reads(bsym), *makes(bsym))
    return next((Mesh.of(p.device_mesh) for p in proxies if isinstance(p, DTensorProxy)), None)


def refuse_placements(bsym: BoundSymbol, row: Row) -> Reject | None:
    """Why an op on DTensors cannot run on their local tensors; None if it can."""
    args = [p for p in reads(bsym) if isinstance(p, TensorProxy)]
    outs = list(makes(bsym))
    if not any(isinstance(p, DTensorProxy) for p in (*args, *outs)):
        return None
    if not all(isinstance(p, DTensorProxy) for p in (*args, *outs)):
        return Reject("it mixes DTensors and plain tensors")
    operands = list({p.name: p for p in args}.values())
    try:
        fusion = define(sharded(_definition_of_op(bsym, row, operands), operands))
        spread = propagate(fusion)
        (mesh,) = {Mesh.of(p.device_mesh) for p in (*operands, *outs)}
        for proxy, output in zip(outs, fusion.outputs, strict=True):
            wanted = tuple(proxy.placements)
            if placements_of(Placement(spread[output.name]), mesh) != wanted:
                return Reject(f"DTensor places its result as {wanted}")
    except (FuserError, ValueError) as error:
        return Reject(" ".join(str(error).split()))
    return None


def _definition_of_op(bsym: BoundSymbol, row: Row, operands: Sequence[DTensorProxy]) -> Definition:
    """The definition of one op on whole tensors."""
    fd = Recorder()
    env = {
        p.name: fd.define_tensor(tuple(map(int, p.shape)), None, known_type(p.dtype))
        for p in operands
    }

    def value_of(argument: Any) -> Any:
        if isinstance(argument, NumberProxy):
            return argument.value
        return env[argument.name] if isinstance(argument, TensorProxy) else argument

    results = row.record(fd, *tree_map(value_of, tuple(bsym.args)))
    for value in results if isinstance(results, tuple) else (results,):
        fd.add_output(fd.ops.set(value))
    return fd.definition


def sharded(definition: Definition, inputs: Sequence[Any]) -> Definition:
    """A region's definition with the placements of its DTensors."""
    names = [r.outputs[0] for r in definition if r.op in ("define_tensor", "define_scalar")]
    records: list[OpRecord] = []
    for name, proxy in zip(names, inputs, strict=True):
        if isinstance(proxy, DTensorProxy):
            placement = placement_of(proxy.name, proxy, may_be_partial=False)
            records += layout_records(name, Mesh.of(proxy.device_mesh), placement)
    return (*definition, *records)


# --------------------------------------------------------------------------------- the call


def on_locals(run: LocalFunction, inputs: Sequence[Any], outputs: Sequence[Any]) -> LocalFunction:
    """A function of local tensors -> one of DTensors, with the placements of the trace."""
    wanted, of_results = _specs(inputs), _specs(outputs)

    def call(*args: Any) -> list[Any]:
        return [*map(dtensor_of, run(*map(_local, args, wanted)), of_results)]

    return call


def on_dtensors(run: LocalFunction, inputs: Sequence[Any]) -> LocalFunction:
    """A function of DTensors -> one of local tensors; the inverse of `on_locals`."""
    specs = _specs(inputs)

    def call(*args: Any) -> list[Any]:
        return [result._local_tensor for result in run(*map(dtensor_of, args, specs))]

    return call


def _specs(proxies: Sequence[Any]) -> list[Any]:
    """Mesh and placements of each DTensor; None for any other value."""
    return [p.spec._o if isinstance(p, DTensorProxy) else None for p in proxies]


def _local(arg: Any, spec: Any) -> Any:
    if spec is None:
        return arg
    if arg._spec.placements != spec.placements or arg._spec.mesh != spec.mesh:
        raise InputError(
            "a region's argument", expected=f"placements {spec.placements} on {spec.mesh}",
            got=f"{arg._spec.placements} on {arg._spec.mesh}",
        )  # fmt: skip
    return local_of(arg)
