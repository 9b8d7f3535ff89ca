# SPDX-License-Identifier: Apache-2.0
"""Rows of parameters in which every value of an axis meets every value of each other axis.

    5 shapes, 3 dtypes and 2 targets, 30 rows
->  15 rows: each shape has each dtype, and each of them runs on both targets

A mistake that shows in one value, or in two together, is found by these as by all of the grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def pairs(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows with a value of each axis. The next row is the one with the most new pairs."""
    grid = [*itertools.product(*(range(len(axis)) for axis in axes))]
    of_row = {row: {*itertools.combinations(enumerate(row), 2)} for row in grid}
    missing, rows = set().union(*of_row.values()), []
    while missing:
        row = max(grid, key=lambda row: len(of_row[row] & missing))
        missing -= of_row[row]
        rows.append(row)
    return [tuple(axis[at] for axis, at in zip(axes, row, strict=True)) for row in sorted(rows)]
