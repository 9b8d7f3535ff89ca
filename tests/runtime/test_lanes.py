# SPDX-License-Identifier: Apache-2.0
"""A math function has the same bits at the end of a row as in its middle, and in any loop."""

from __future__ import annotations

import pytest
import torch

from thunder_fuser.codegen.prelude.libm import vector_functions
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType

UNARY = (
    "exp", "log", "sin", "cos", "tan", "tanh", "erf", "erfc", "log1p", "expm1", "exp2", "log2",
    "asinh", "atan", "sinh", "cosh", "sigmoid", "asin",
)  # fmt: skip
BINARY = ("pow", "atan2")


def values(x: torch.Tensor, dtype: DataType) -> list[torch.Tensor]:
    """Every function of x."""
    with FusionDefinition() as fd:
        read = fd.define_tensor([-1], [True], dtype=dtype)
        for name in UNARY:
            fd.add_output(getattr(fd.ops, name)(read))
        for name in BINARY:
            fd.add_output(getattr(fd.ops, name)(read, read))
    return fd.execute([x])  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_the_end_of_a_row(dtype: torch.dtype) -> None:
    x = torch.rand(77, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    kind = {torch.float32: DataType.Float, torch.float64: DataType.Double}[dtype]
    whole = values(x, kind)
    for length in (1, 2, 3, 5, 9, 31):
        for start in (0, 40):
            part = values(x[start : start + length].clone(), kind)
            for name, one, other in zip((*UNARY, *BINARY), part, whole, strict=True):
                assert torch.equal(one, other[start : start + length]), (name, length)


def test_libmvec_is_there() -> None:
    """Where it is not, all of the above is libm's, and proves nothing."""
    if not vector_functions():
        pytest.skip("no libmvec on this machine")
    assert {"expf", "tanhf", "exp", "powf"} <= vector_functions()
