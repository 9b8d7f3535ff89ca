# SPDX-License-Identifier: Apache-2.0
"""Every argument of every call of a definition, given every kind of value.

A call is accepted, and can then be planned, written as kernels and computed, or it raises one of
our errors: never another one, and never a crash.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import inf, nan, prod
from typing import Any

import numpy as np
import pytest
import torch

from thunder_fuser.errors import FuserError
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.composites import Composites
from thunder_fuser.ir.frontend.kinds import Constant
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import DtypeRule
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.rules.build import define
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.runtime.torch_types import from_torch_dtype

FLOATS = torch.arange(24.0).reshape(4, 6)
INTEGERS = torch.arange(24).reshape(4, 6) % 4
INPUTS = (FLOATS, INTEGERS, FLOATS.to(torch.complex64), INTEGERS[:, 0].contiguous(), 2)
FOREIGN = Recorder().define_tensor([-1, -1], True)
LARGEST = 10**6  # elements of what is computed here


class Given:
    """A definition with some of everything that an argument may be."""

    def __init__(self) -> None:
        self.fd = Recorder()
        self.t, self.i, self.c, self.column = (
            self.fd.define_tensor([-1] * x.dim(), True, from_torch_dtype(x.dtype))
            for x in INPUTS[:4]
        )
        self.s = self.fd.define_scalar(dtype=DataType.Int)


class Silent:
    """An object without a text."""

    def __repr__(self) -> str:
        raise ValueError("no text")


# From a definition to a value; the name tells which in a failing case.
VALUES: dict[str, Callable[[Given], Any]] = {
    **{
        f"{value!r:.20}": lambda g, value=value: value  # type: ignore[misc]
        for value in (
            None, "x", "T0", b"x", {}, {1}, {0: 1}, 0.5, -0.0, [0.0], [0.5], [[0]], [], (), [0],
            [1, 0], [None], ["T0"], range(2), 10**30, [10**30], -(2**63), 2**31, [2**31], -1, -7,
            7, 0, [7], [-7], [0, 0], True, False, [True], [True, True, False], 1j, nan, inf, -inf,
            [nan],
            np.int64(1), np.int8(-1), np.float32(1), np.float64(2.0), np.bool_(True), 1e300,
            np.array([1]), np.array(1), Constant(1), Constant(0.5), [Constant(1)],
            DataType.Float, DataType.Bool, DataType.Int8, DataType.ComplexFloat, [DataType.Float],
            torch.float32, torch.tensor(1), torch.Size([4]), int, len,
        )
    },
    "many digits": lambda g: 10**5000,
    "an object": lambda g: object(),
    "an object without a text": lambda g: Silent(),
    "a tensor": lambda g: g.t,
    "a tensor of integers": lambda g: g.i,
    "a complex tensor": lambda g: g.c,
    "a scalar": lambda g: g.s,
    "a list of tensors": lambda g: [g.t, g.i],
    "a list of a scalar": lambda g: [g.s],
    "a computed scalar": lambda g: g.fd.ops.size(g.t, 0),
    "a number made a value": lambda g: g.fd.ops.set(2.0),
    "a tensor of another definition": lambda g: FOREIGN,
    "a list of a tensor of another definition": lambda g: [FOREIGN],
}

# What is right for an argument of a name, or of one call.
RIGHT: dict[str, Callable[[Given], Any]] = {
    "tensors": lambda g: [g.t, g.t],
    "dtype": lambda g: DataType.Float,
    "dims": lambda g: [0],
    "dim": lambda g: 0,
    "at": lambda g: 0,
    "axis": lambda g: 0,
    "outer": lambda g: 0,
    "factor": lambda g: 2,
    "order": lambda g: [1, 0],
    "domain": lambda g: [0, 1],
    "shape": lambda g: [4, 6],
    "new_shape": lambda g: [24],
    "stride_order": lambda g: [0, 1],
    "is_broadcast_dim": lambda g: [False, True, False],
    "broadcast_dims": lambda g: [0, 1],
    "start_indices": lambda g: [0, 1],
    "end_indices": lambda g: [4, 5],
    "pad_widths": lambda g: [1, 0],
    "length": lambda g: 5,
    "num_weights": lambda g: 6,
    "k": lambda g: 2,
    "index": lambda g: g.i,
    **dict.fromkeys(("mat1", "arg1"), lambda g: g.t),
    "dropout_p": lambda g: 0.0,
    "is_causal": lambda g: False,
    "cat_dim": lambda g: 1,
    "on": lambda g: "mesh_x",
    "placements": lambda g: ["Replicate()"],
    "reduce": lambda g: "sum",
    "root": lambda g: 0,
    "split_dim": lambda g: 0,
    "indices": lambda g: g.i,
    "mesh": lambda g: [0, 1],
    "values": lambda g: [1, 2],
    "output": lambda g: g.fd.ops.neg(g.t),
    **dict.fromkeys(("lo", "hi", "mean", "std", "fill_value", "alpha"), lambda g: 1.0),
}
RIGHT_IN: dict[tuple[str, str], Callable[[Given], Any]] = {
    **{
        (call, "mesh"): lambda g: [0] for call in
        ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast_from")
    },
    ("permute", "dims"): lambda g: [1, 0],
    ("squeeze", "arg"): lambda g: g.fd.ops.broadcast(g.t, [True, False, False]),
    ("imag", "x"): lambda g: g.c,
    ("pad", "value"): lambda g: 0,
    ("iota", "dtype"): lambda g: DataType.Int,
    ("matmul", "b"): lambda g: g.fd.ops.permute(g.t, [1, 0]),
    ("embedding_fwd", "input"): lambda g: g.column,
    ("embedding_backward", "indices"): lambda g: g.column,
    ("parallelize", "parallel"): lambda g: "mesh_x",
    ("select", "index"): lambda g: 1,
    ("at", "index"): lambda g: -1,
    ("at", "vector"): lambda g: [3, g.t.size(0)],
    ("where", "condition"): lambda g: g.fd.ops.gt(g.t, 0.0),
    **dict.fromkeys(
        [(op, name) for op in ("sdpfa_fwd", "sdpfa_bwd")
         for name in ("grad_output", "query", "key", "value", "output")],
        lambda g: g.fd.ops.reshape(g.t, [1, 2, 3, 4]),
    ),
    ("sdpfa_bwd", "logsumexp"): lambda g: g.fd.ops.full([1, 2, 3], 0.0, DataType.Float),
    ("sdpfa_bwd", "philox_seed"): lambda g: g.fd.ops.full([2], 0, DataType.Int),
    ("sdpfa_bwd", "philox_offset"): lambda g: g.fd.ops.full([], 0, DataType.Int),
    ("grouped_mm", "mat1"): lambda g: g.fd.ops.full([8, 4], 1.0, DataType.Float),
    ("grouped_mm", "mat2"): lambda g: g.fd.ops.full([4, 4, 8], 1.0, DataType.Float),
    ("grouped_mm", "offsets"): lambda g: g.column,
    **{(op, "index"): lambda g: g.column for op in OPS if op.startswith("index_")},
}
# Given though it could be left out.
ALSO = {"define_tensor": ("shape",), "define_vector": ("values",)}
METHODS = ("define_tensor", "define_scalar", "define_vector", "add_output")
LAYOUTS = (
    "split", "inner_split", "outer_split", "merge", "reorder", "axis", "set_allocation_domain",
    "parallelize", "set_device_mesh",
)  # fmt: skip
COMPOSITES = tuple(name for name in vars(Composites) if not name.startswith("_"))
CALLS = (*OPS, *COMPOSITES, *METHODS, *LAYOUTS)


def signature_of(call: str) -> dict[str, inspect.Parameter]:
    if call in OPS:
        return dict(OPS[call].parameters.parameters)
    owner = Composites if call in COMPOSITES else Recorder if call in METHODS else Tensor
    found = dict(inspect.signature(getattr(owner, call)).parameters)
    del found["self"]
    return found


def right(g: Given, call: str, name: str) -> Any:
    """A value that the call takes."""
    find = RIGHT_IN.get((call, name)) or RIGHT.get(name)
    if find is not None:
        return find(g)
    return g.i if call in OPS and OPS[call].rule is DtypeRule.INTEGER else g.t


def run(call: str, name: str | None, value: Callable[[Given], Any]) -> Fusion:
    """The call with one of its arguments replaced, as a definition that is checked."""
    g = Given()
    arguments = {
        one: right(g, call, one)
        for one, parameter in signature_of(call).items()
        if one != name
        and (parameter.default is inspect.Parameter.empty or one in ALSO.get(call, ()))
    }
    if name is not None:
        arguments[name] = value(g)
    owner = g.fd if call in METHODS else g.t if call in LAYOUTS else g.fd.ops
    result = getattr(owner, call)(**arguments)
    for one in result if isinstance(result, (tuple, list)) else [result]:
        if isinstance(one, Tensor) and one.name != "T0":
            g.fd.add_output(one)
    g.fd.add_output(g.fd.ops.exp(g.t))
    return define(g.fd.definition)


def compute(fusion: Fusion) -> None:
    """By what the ops mean in torch: what a size or an index does not fit is found there."""
    sizes = [[e.value for e in v.shape if e.is_const] for v in fusion.tensors.values()]
    if len(fusion.inputs) == len(INPUTS) and max(map(prod, sizes)) <= LARGEST:
        evaluate(specialise(fusion, input_keys(fusion, INPUTS)), INPUTS)


# index_store is right as a result over an argument alone: tests/segment/test_index_stores.py
@pytest.mark.parametrize("call", [c for c in CALLS if c not in (*LAYOUTS, "index_store")])
def test_what_is_right_is_taken(call: str) -> None:
    compute(run(call, None, lambda g: None))


@pytest.mark.parametrize("call", CALLS)
def test_any_value_is_taken_or_refused(call: str) -> None:
    seen: set[Fusion] = set()
    for name in signature_of(call):
        for text, value in VALUES.items():
            try:
                fusion = run(call, name, value)
                if fusion not in seen:
                    seen.add(fusion)
                    compute(fusion)
            except FuserError as error:
                assert len(str(error)) < 2000
            except Exception as error:
                pytest.fail(f"{call}({name}={text}): {type(error).__name__}: {error}")
