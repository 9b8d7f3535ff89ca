# SPDX-License-Identifier: Apache-2.0
"""A flip counts down, and what is divided after it must not fall below zero: C rounds up there."""

from __future__ import annotations

import torch
from helpers.cases import Runner, rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.scalar import const, symbol


def test_flipped_then_reshaped(run: Runner) -> None:
    x = rand(3, 4)

    def fusion(fd: FusionDefinition) -> None:
        flat = fd.ops.reshape(fd.ops.pad(fd.from_pytorch(x), [1, 1], 0.5), [18])
        fd.add_output(fd.ops.reshape(fd.ops.flip(flat, [0]), [6, 3]))

    wide = torch.nn.functional.pad(x, (1, 1), value=0.5)
    run(fusion, [x], [wide.reshape(18).flip(0).reshape(6, 3)])


def test_what_is_divided_is_never_negative() -> None:
    i, j = symbol("i", 0, 3), symbol("j", 0, 2)
    x = const(11) - i * 3 - j
    for made in (x // 4, x % 4):
        assert all(part.lo >= 0 for part in made.parts)
    for a in range(4):
        for b in range(3):
            value = 11 - 3 * a - b
            known = {"i": a, "j": b}
            assert (x // 4).substitute(known).value == value // 4
            assert (x % 4).substitute(known).value == value % 4
