# SPDX-License-Identifier: Apache-2.0
"""nvFuser's language: what each call records, and the composites against torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from thunder_fuser.errors import DefinitionError, StrideOrderError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.kinds import Constant, Scalar
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.record import definition_text
from thunder_fuser.ir.rules.build import define
from thunder_fuser.runtime.eager.evaluate import evaluate


def attrs_of(**arguments: object) -> dict[str, object]:
    fd = Recorder()
    fd.define_tensor(**arguments)  # type: ignore[arg-type]
    return dict(fd.definition[0].attrs)


def test_what_a_tensor_records() -> None:
    assert attrs_of(shape=[-1, 1, 4], contiguity=True) == {
        "shape": (-1, 1, 4),
        "contiguity": (True, None, True),
        "dtype": DataType.Float,
        "is_cpu": False,
        "stride_order": (2, 1, 0),
    }


def test_contiguity_is_listed_in_memory_order() -> None:
    attrs = attrs_of(shape=[-1, 1], contiguity=True, stride_order=[0, 1])
    assert attrs["contiguity"] == (None, True)


def test_negative_stride_orders_are_normalised() -> None:
    attrs = attrs_of(shape=[-1, -1], contiguity=True, stride_order=[-2, -1])
    assert attrs["stride_order"] == (0, 1)


def test_sizes_and_strides_of_an_example() -> None:
    x = torch.empty(4, 1, 6).permute(2, 1, 0)
    attrs = attrs_of(sizes=x.shape, strides=x.stride(), dtype=DataType.Half)
    assert attrs["shape"] == (-1, 1, -1)
    assert attrs["stride_order"] == (0, 2, 1)
    assert attrs["contiguity"] == (None, True, True)
    assert attrs_of(sizes=[4, 6], strides=[6, 1], static_sizes=True)["shape"] == (4, 6)


def test_an_expanded_axis_has_no_contiguity() -> None:
    x = torch.empty(1, 6).expand(4, 6)
    attrs = attrs_of(sizes=x.shape, strides=x.stride())
    assert attrs["contiguity"] == (None, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "define_tensor: expected shape, or sizes and strides, got none"),
        (
            {"shape": [-2], "contiguity": True},
            "define_tensor: shape[0]: expected -1 or a size >= 0, got -2",
        ),
        (
            {"shape": [2.0], "contiguity": True},
            "define_tensor: shape: expected a list of integers, got list [2.0]",
        ),
        (
            {"shape": [-1, -1], "contiguity": [True]},
            "define_tensor: contiguity: expected 2 entries, got [True]",
        ),
        (
            {"shape": [-1, 1], "contiguity": [True, True]},
            "define_tensor: contiguity[1]: expected None for the broadcast axis 1, got True",
        ),
        (
            {"shape": [-1], "contiguity": True, "is_cpu": True},
            "define_tensor: expected a CPU tensor of rank 0, got rank 1",
        ),
        ({"sizes": [2], "strides": [-1]}, "strides: expected no negative stride, got [-1]"),
        ({"sizes": [2], "strides": [1, 1]}, "strides: expected 1 values, got [1, 1]"),
    ],
)
def test_tensors_that_cannot_be(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(DefinitionError) as error:
        attrs_of(**arguments)
    assert str(error.value) == message


@pytest.mark.parametrize("order", [[0, 0], [0], [1, 2]])
def test_a_tensor_order_that_is_no_permutation(order: list[int]) -> None:
    with pytest.raises(StrideOrderError) as error:
        attrs_of(shape=[-1, -1], contiguity=True, stride_order=order)
    assert str(error.value) == (
        f"stride_order {order}: expected a permutation of 0..1, got {order}. "
        "To fix it: give each logical axis its own position, 0 for the fastest."
    )


def test_scalars() -> None:
    fd = Recorder()
    assert isinstance(fd.define_scalar(dtype=DataType.Int), Scalar)
    assert isinstance(fd.define_scalar(DataType.Float), Scalar)
    assert fd.define_scalar(2) == Constant(2)
    assert fd.define_scalar(2, DataType.Float) == Constant(2.0)
    assert fd.define_scalar(1, DataType.Bool) == Constant(True)
    assert [r.attr("dtype") for r in fd.definition] == [DataType.Int, DataType.Float]


def test_vectors() -> None:
    fd = Recorder()
    assert fd.define_vector([2, 3]) == [Constant(2), Constant(3)]
    assert [str(v) for v in fd.define_vector(2)] == ["S0", "S1"]
    x = fd.define_tensor([-1], True)
    result = fd.ops.broadcast_in_dim(x, fd.define_vector([2, fd.ops.size(x, 0)]), [1])
    assert isinstance(result, Tensor)
    assert fd.definition[-1].attr("shape") == (2, "S3")


def test_every_row_is_a_method() -> None:
    assert {"add", "sum", "var_mean", "reshape"} <= set(dir(Recorder().ops))


def test_a_definition_prints_while_it_is_recorded() -> None:
    fd = Recorder()
    x = fd.define_tensor([-1], True)
    fd.ops.add(x, 1)
    assert definition_text(fd.definition) == (
        "def fusion(fd):\n"
        "    T0 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float, "
        "is_cpu=False, stride_order=[0])\n"
        "    T1 = fd.ops.add(T0, 1)\n"
    )


# ---- composites

Composite = Callable[[Recorder, Tensor], tuple[object, ...]]
Eager = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]

COMPOSITES: list[tuple[str, Composite, Eager]] = [
    (
        "var_mean",
        lambda fd, x: fd.ops.var_mean(x, [1], 1, False),
        lambda x: torch.var_mean(x, 1),
    ),
    (
        "var_mean keepdim",
        lambda fd, x: fd.ops.var_mean(x, [0, 1], 0, True),
        lambda x: torch.var_mean(x, (0, 1), correction=0, keepdim=True),
    ),
    ("var of all", lambda fd, x: (fd.ops.var(x),), lambda x: (torch.var(x),)),
    (
        "welford",
        lambda fd, x: fd.ops.welford(x, [1])[:2],
        lambda x: (x.mean(1), x.var(1, correction=0) * x.shape[1]),
    ),
    (
        "addcmul",
        lambda fd, x: (fd.ops.addcmul(x, x, 3.0, 0.5),),
        lambda x: (x + 0.5 * x * 3.0,),
    ),
    ("triu", lambda fd, x: (fd.ops.triu(x),), lambda x: (torch.triu(x),)),
    ("triu 2", lambda fd, x: (fd.ops.triu(x, 2),), lambda x: (torch.triu(x, 2),)),
    ("triu -1", lambda fd, x: (fd.ops.triu(x, -1),), lambda x: (torch.triu(x, -1),)),
    (
        "shape",
        lambda fd, x: (fd.ops.full(fd.ops.shape(x), 1, DataType.Float),),
        torch.ones_like,
    ),
]


@pytest.mark.parametrize(
    ("build", "eager"), [row[1:] for row in COMPOSITES], ids=[row[0] for row in COMPOSITES]
)
def test_composites(build: Composite, eager: Eager) -> None:
    fd = Recorder()
    for value in build(fd, fd.define_tensor([-1, -1], True)):
        fd.add_output(value)  # type: ignore[arg-type]
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    expected = eager(x)
    expected = (expected,) if isinstance(expected, torch.Tensor) else expected
    torch.testing.assert_close(tuple(evaluate(define(fd.definition), [x])), tuple(expected))
