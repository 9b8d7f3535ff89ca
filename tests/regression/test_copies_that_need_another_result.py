# SPDX-License-Identifier: Apache-2.0
"""A copied reshape reads what its maker did not store, and cannot beside its own result."""

from __future__ import annotations

from helpers.cases import Runner, rand

from thunder_fuser.definition import FusionDefinition


def test_copies_that_need_another_result(run: Runner) -> None:
    x = rand(4, 34)

    def fusion(fd: FusionDefinition) -> None:
        wide = fd.ops.reshape(fd.ops.sin(fd.from_pytorch(x)), [2, 68])
        fd.add_output(fd.ops.neg(wide))
        fd.add_output(fd.ops.slice(wide, [0, 0], [1, 68]))

    wide = x.sin().reshape(2, 68)
    run(fusion, [x], [-wide, wide[:1]], tolerance=1e-6)
