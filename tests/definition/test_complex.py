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
from thunder_fuser.errors import DefinitionError, DtypeError, InputError
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


def test_a_complex_number_around_real_ones() -> None:
    fd = FusionDefinition()
    with pytest.raises(DtypeError, match="pad: value: expected a number of type Float"):
        fd.ops.pad(fd.from_pytorch(rand(3)), [1, 1], 1j)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    call, message = REFUSED[name]
    fd = FusionDefinition()
    fd.add_output(call(fd.ops, fd.from_pytorch(X)))
    with pytest.raises(DtypeError) as error:
        fd.fusion
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_constants(run: Runner, dtype: torch.dtype) -> None:
    """As operands, and as scalars of a type; torch's promotion, and infinite parts."""
    x, real = X.to(dtype), rand(5, 12)
    inf = complex(math.inf, 2.0)

    def build(fd: FusionDefinition) -> None:
        t, r = fd.from_pytorch(x), fd.from_pytorch(real)
        fd.add_output(fd.ops.add(t, 1j))
        fd.add_output((2 - 3j) * r)
        fd.add_output(fd.ops.sub(t, fd.define_scalar(1.5 - 2j)))
        fd.add_output(fd.ops.add(r, fd.define_scalar(1 + 2j, DataType.ComplexFloat)))
        fd.add_output(fd.ops.where(fd.ops.gt(r, 0.0), 1j, t))
        fd.add_output(fd.ops.add(r, fd.define_scalar(2.0, DataType.ComplexDouble)))
        fd.add_output(fd.ops.full([3], inf, DataType.ComplexFloat))
        fd.add_output(fd.ops.full([3], 2.5, DataType.ComplexFloat))
        fd.add_output(fd.ops.pad(t, [1, 0], 2 - 1j))

    expected = [x + 1j, (2 - 3j) * real, x - (1.5 - 2j), real + (1 + 2j),
                torch.where(real > 0, 1j, x).to(dtype), real + (2 + 0j),
                torch.full((3,), inf), torch.full((3,), 2.5 + 0j),
                torch.cat([torch.full((len(x), 1), 2 - 1j, dtype=dtype), x], 1)]  # fmt: skip
    run(build, [x, real], expected)


@pytest.mark.parametrize("dtype", [DataType.ComplexFloat, DataType.ComplexDouble], ids=str)
def test_complex_numbers_of_the_call(run: Runner, dtype: DataType) -> None:
    """A complex scalar between other arguments; a real number is one too."""

    def build(fd: FusionDefinition) -> None:
        t, a, b = fd.from_pytorch(X), fd.define_scalar(dtype=dtype), fd.define_scalar()
        n = fd.define_vector(1)
        fd.add_output(fd.ops.mul(fd.ops.add(t, a), b))
        fd.add_output(fd.ops.full(n, a, dtype))

    wide = torch.complex64 if dtype is DataType.ComplexFloat else torch.complex128
    for number in (1.5 - 2j, 2.0, 3, complex(0.0, -0.0)):
        filled = torch.full((4,), complex(number)).to(wide)
        run(build, [X, number, 0.5, [4]], [(X + number) * 0.5, filled], tolerance=1e-6)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_cpu_scalars(run: Runner, dtype: torch.dtype) -> None:
    x, number = X.to(dtype), torch.tensor(1.5 - 2j, dtype=dtype)

    def build(fd: FusionDefinition) -> None:
        t, a = fd.from_pytorch(x), fd.from_pytorch(number)
        fd.add_output(fd.ops.mul(t, a))

    run(build, [x, number], [x * number], tolerance=1e-6)
    run(build, [x, number.conj()], [x * number.conj()], tolerance=1e-6)


def test_what_is_no_complex_number_is_refused() -> None:
    with FusionDefinition() as fd:
        a = fd.define_scalar(dtype=DataType.ComplexDouble)
        fd.add_output(fd.ops.add(fd.from_pytorch(X), a))
    for wrong in ("x", X, None):
        with pytest.raises(InputError):
            fd.execute([wrong, X])
    with pytest.raises(DefinitionError, match="a number of type Float, got complex 1j"):
        FusionDefinition().define_scalar(1j, DataType.Float)
