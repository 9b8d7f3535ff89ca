# SPDX-License-Identifier: Apache-2.0
"""Complex numbers: what is refused, and what shares a kernel. test_ops.py has their values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import Runner, rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import DtypeError
from thunder_fuser.ir.dtypes import DataType

X = torch.complex(rand(5, 12), rand(5, 12, seed=1))


def test_from_parts_through_a_rotation_to_parts(run: Runner) -> None:
    """What rotary embeddings do with view_as_complex, in one kernel."""
    angle = rand(12, seed=2)

    def build(fd: FusionDefinition) -> None:
        re, im, a = fd.from_pytorch(X.real), fd.from_pytorch(X.imag), fd.from_pytorch(angle)
        turn = fd.ops.complex(fd.ops.cos(a), fd.ops.sin(a))
        turned = fd.ops.mul(fd.ops.complex(re, im), turn)
        fd.add_output(fd.ops.real(turned))
        fd.add_output(fd.ops.imag(turned))
        assert len(fd.plan([X.real, X.imag, angle], target="h200").segments) == 1

    expected = X * torch.polar(torch.ones(12), angle)
    parts = [expected.real.contiguous(), expected.imag.contiguous()]
    run(build, [X.real, X.imag, angle], parts, tolerance=1e-6)


def test_large_and_small_parts(run: Runner) -> None:
    """Whose squares overflow or vanish, and division by zero."""
    inf = math.inf
    x = torch.tensor([1e30 + 1e30j, 1e-30 + 1e-30j, 3e38 + 1j, 4j, -4.0, 0j, complex(0, inf)])

    def build(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.abs(t))
        fd.add_output(fd.ops.sqrt(t))
        fd.add_output(fd.ops.truediv(t, t))

    with FusionDefinition() as fd:
        build(fd)
    size, root, one = run.execute(fd, [x])
    wide = x.to(torch.complex128)
    torch.testing.assert_close(size, wide.abs().float())
    torch.testing.assert_close(root[:-1], wide.sqrt().to(x.dtype)[:-1])
    torch.testing.assert_close(one[:5], torch.ones(5, dtype=x.dtype))
    assert one[5].isnan()


def test_a_complex_scalar_decides_by_category(run: Runner) -> None:
    """Made of numbers of the call; beside a double it is of doubles."""
    x = rand(4, 6)

    def build(fd: FusionDefinition) -> None:
        t, a = fd.from_pytorch(x), fd.define_scalar(dtype=DataType.Double)
        turn = fd.ops.cast(a, DataType.ComplexFloat)
        fd.add_output(fd.ops.mul(t, turn))
        fd.add_output(fd.ops.mul(fd.ops.cast(t, DataType.Double), turn))

    run(build, [x, 2.5], [(x * 2.5).cfloat(), (x.double() * 2.5).cdouble()])


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "order": (lambda o, t: o.lt(t, t), "ops.lt: expected a real type, got ComplexFloat"),
    "no formula": (lambda o, t: o.erf(t), "ops.erf: expected a real type, got ComplexFloat"),
    "integers": (lambda o, t: o.bitwise_and(t, t), "ops.bitwise_and: expected a real type"),
    "maximum": (lambda o, t: o.max(t, [0]), "ops.max: expected a real type, got ComplexFloat"),
    "running": (lambda o, t: o.cummax(t, 0), "ops.cummax: expected a real type"),
    "imaginary part": (lambda o, t: o.imag(o.real(t)), "ops.imag: expected a complex type, got"),
    "of complex": (lambda o, t: o.complex(t, t), "ops.complex: expected a real type"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    call, message = REFUSED[name]
    fd = FusionDefinition()
    fd.add_output(call(fd.ops, fd.from_pytorch(X)))
    with pytest.raises(DtypeError) as error:
        fd.fusion
    assert str(error.value).startswith(message)


def test_no_complex_number_is_passed_by_value() -> None:
    fd = FusionDefinition()
    with pytest.raises(DtypeError, match="define_scalar: expected a real type, got ComplexDouble"):
        fd.define_scalar(dtype=DataType.ComplexDouble)
    with pytest.raises(DtypeError, match="a CPU scalar: expected a real type"):
        fd.define_tensor(shape=[], contiguity=[], dtype=DataType.ComplexFloat, is_cpu=True)
