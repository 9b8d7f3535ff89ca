# SPDX-License-Identifier: Apache-2.0
"""A chain of operations longer than Python's stack is deep: lowering walked it by recursion."""

from __future__ import annotations

from helpers.cases import Runner, rand

from thunder_fuser.definition import FusionDefinition


def test_long_chains(run: Runner) -> None:
    x = rand(8)
    expected = x

    def fusion(fd: FusionDefinition) -> None:
        first = value = fd.from_pytorch(x)
        for _ in range(200):
            value = fd.ops.add(fd.ops.mul(value, 0.5), first)
        fd.add_output(value)

    for _ in range(200):
        expected = expected * 0.5 + x
    run(fusion, [x], [expected])
