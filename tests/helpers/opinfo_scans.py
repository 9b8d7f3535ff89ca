# SPDX-License-Identifier: Apache-2.0
"""Samples of scans, as opinfo.py has them of all other ops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch

from helpers.opinfo import Body, Sample, misaligned, values_for
from thunder_fuser.ir.dtypes import COMPUTED, DataType
from thunder_fuser.ir.op_table import SCANS

D = DataType


def _samples_of(row: str) -> list[Sample]:
    """Short rows, rows of many steps, columns; every type; NaN and infinities."""

    def body(dim: int) -> Body:
        return lambda fd, *xs: [getattr(fd.ops, row)(x, dim) for x in xs]

    def of(name: str, shape: Sequence[int], dim: int, dtypes: Sequence[DataType] = (D.Float,),
           form: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> Sample:
        reduction = SCANS[row]
        inputs = tuple(form(values_for(reduction, shape, dtype)) for dtype in dtypes)
        floor = {"sum": 2e-6 * max(*shape, 1) ** 0.5, "prod": 1e-5}.get(reduction, 0.0)
        return Sample(row, name, inputs, body(dim), {"sum": 16.0, "prod": 64.0}.get(reduction, 0.0),
                      floor)

    odd = torch.tensor([[math.nan, 1, 2, 2], [math.inf, 1, 2, -0.0], [-math.inf, 1, math.inf, 0],
                        [3, math.nan, 5, 5], [-0.0, 0.0, -0.0, 1]])
    everything = list(COMPUTED)
    return [
        of("inner dtypes", (5, 37), 1, everything),
        of("outer dtypes", (37, 5), 0, everything),
        of("steps", (3, 2500), -1, (D.Float, D.BFloat16)),
        of("an odd length", (2, 1031), 1),
        of("many columns", (40, 600), 0),
        of("few long columns", (900, 3), 0),
        of("middle", (3, 17, 5), 1),
        of("rank 1", (129,), 0),
        of("permuted", (6, 40), 0, (D.Float,), lambda x: x.t()),
        of("expanded", (1, 40), 0, (D.Float,), lambda x: x.expand(6, 40)),
        of("sliced", (6, 43), 1, (D.Float,), lambda x: x[:, 2:42]),
        of("misaligned", (5, 64), 1, (D.Float,), misaligned),
        of("axis of size 1", (6, 1), 1),
        of("of nothing", (3, 0), 1),
        Sample(row, "odd values", (odd,), lambda fd, x: [*body(1)(fd, x), *body(0)(fd, x)], 4),
    ]


def scan_samples() -> list[Sample]:
    """Those of every scan."""
    return list(itertools.chain.from_iterable(map(_samples_of, SCANS)))
