# SPDX-License-Identifier: Apache-2.0
"""Cheap operations that read one value twice, on and on: each of 2 to the 30 paths was walked."""

from __future__ import annotations

from helpers.cases import Runner, rand

from thunder_fuser.definition import FusionDefinition


def test_slices_of_slices(run: Runner) -> None:
    x = rand(64, 4)
    expected = x
    for _ in range(30):
        expected = (expected[:-1] + expected[1:]) * 0.5

    def fusion(fd: FusionDefinition) -> None:
        value = fd.from_pytorch(x)
        for rows in range(64, 34, -1):
            upper = fd.ops.slice(value, [0, 0], [rows - 1, 4])
            lower = fd.ops.slice(value, [1, 0], [rows, 4])
            value = fd.ops.mul(fd.ops.add(upper, lower), 0.5)
        fd.add_output(value)

    run(fusion, [x], [expected])
