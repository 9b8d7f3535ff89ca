# SPDX-License-Identifier: Apache-2.0
"""Samples of the rows that take complex numbers, as opinfo.py has them of real ones."""

from __future__ import annotations

import torch

from helpers.opinfo import Body, Input, Sample, normal
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.kinds import Value
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.op_table import OPS

D = DataType
EXACT = ("neg", "real", "imag", "complex", "eq", "ne", "add", "sub", "isreal", "where", "cast")


def numbers(*shape: int, dtype: torch.dtype = torch.complex64, seed: int = 0) -> torch.Tensor:
    """Normal parts."""
    return torch.complex(*(normal(*shape, dtype=torch.float64, seed=seed + i) for i in (1, 2))).to(
        dtype
    )


def _of_row(name: str, arity: int) -> Sample:
    """Both types, beside each other and beside real numbers; purely real and imaginary ones."""
    inputs: list[Input] = []
    for dtype in (torch.complex64, torch.complex128):
        x, y = (numbers(6, 10, dtype=dtype, seed=at) for at in (3, 5))
        x[0, :4] = torch.tensor([1, -1, 1j, -1j])
        y[1] = x[1]
        inputs += [x, y][:arity]
    inputs.append(normal(6, 10))

    def body(fd: Recorder, *values: Value) -> list[Value]:
        call, real = getattr(fd.ops, name), values[-1]
        if arity == 1:
            return [call(x) for x in values[:-1]]
        a, b, c, d = values[:-1]
        return [call(a, b), call(c, d), call(a, d), call(a, real), call(real, a), call(a, 2.5)]

    ulps = 0.0 if name in EXACT else 64.0
    return Sample(name, "complex", tuple(inputs), body, ulps, 0.0 if name in EXACT else 1e-6)


def _sums(row: str) -> Body:
    def body(fd: Recorder, *values: Value) -> list[Value]:
        call = getattr(fd.ops, row)
        return [made for x in values for made in (call(x, [1]), call(x, [0], True), call(x))]

    return body


def _scans(row: str) -> Body:
    return lambda fd, *xs: [getattr(fd.ops, row)(x, dim) for x in xs for dim in (0, 1)]


def _moved(fd: Recorder, x: Value, y: Value) -> list[Value]:
    ops = fd.ops
    return [ops.permute(x, [1, 0]), ops.pad(x, [1, 2], 2.5), ops.cat([x, y], 0),
            ops.reshape(ops.neg(x), [60]), ops.slice(x, [1, 2], [5, 9])]  # fmt: skip


def _cast(fd: Recorder, x: Value, r: Value) -> list[Value]:
    targets = (D.ComplexFloat, D.ComplexDouble)
    return [fd.ops.cast(value, dtype) for value in (x, r) for dtype in targets] + [
        fd.ops.cast(fd.ops.real(x), D.BFloat16), fd.ops.cast(x, D.Bool),
    ]  # fmt: skip


def _chosen(fd: Recorder, x: Value, r: Value) -> list[Value]:
    positive = fd.ops.gt(r, 0.0)
    return [fd.ops.where(positive, x, r), fd.ops.where(positive, 1.5, x)]


def complex_samples() -> list[Sample]:
    """All of them."""
    rows = [r for r in OPS.values() if r.kind is OpKind.POINTWISE and r.c_complex]
    both = (numbers(5, 12), numbers(5, 12, dtype=torch.complex128))
    x, r = numbers(6, 10), normal(6, 10)
    layouts = (numbers(10, 6).t(), numbers(6, 12)[:, 1:11], numbers(1, 10).expand(6, 10), x)
    return [
        *(_of_row(row.name, row.arity) for row in rows),
        *(Sample(name, "complex", both, _sums(name), 64, 1e-5) for name in ("sum", "prod")),
        *(Sample(name, "complex", both, _scans(name), 64, 1e-5) for name in ("cumsum", "cumprod")),
        Sample("set", "complex", (x, numbers(6, 10, seed=9)), _moved, 0),
        Sample("cast", "complex", (x, r), _cast, 0),
        Sample("where", "complex", (x, r), _chosen, 0),
        Sample("complex", "of parts", (r, normal(6, 10, seed=4), normal(6, 10).double()),
               lambda fd, a, b, c: [fd.ops.complex(a, b), fd.ops.complex(a, c)], 0),
        Sample("neg", "complex layouts", layouts,
               lambda fd, *xs: [fd.ops.add(xs[-1], fd.ops.neg(x)) for x in xs], 0),
        Sample("full", "complex", (), lambda fd: fd.ops.full([3], 1.5, D.ComplexFloat), 0),
    ]  # fmt: skip
