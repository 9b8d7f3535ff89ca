# SPDX-License-Identifier: Apache-2.0
"""Expressions that no result needs go away; inputs stay, since callers pass them.

T1 = exp(T0); T2 = sin(T0); add_output(T2)  ->  T2 = sin(T0); add_output(T2)
"""

from __future__ import annotations

from thunder_fuser.ir.build import define
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.presegment.rewrite import read_names


def remove_dead(fusion: Fusion) -> Fusion:
    """Keeps inputs, outputs and what outputs read, directly or not."""
    needed: set[str] = set()
    kept: list[OpRecord] = []
    for record in reversed(fusion.definition):
        if record.op in _ROOTS or needed.intersection(record.outputs):
            kept.append(record)
            needed |= read_names(record)
    return fusion if len(kept) == len(fusion.definition) else define(tuple(reversed(kept)))


_ROOTS = ("define_tensor", "define_scalar", "add_output")
