# SPDX-License-Identifier: Apache-2.0
"""A row of the table of passes before segmentation, alone."""

from __future__ import annotations

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.sharding.localise import FUSION_PASSES

ROWS = {row.name: row for row in FUSION_PASSES}


def after_row(name: str, fusion: Fusion, *context: object) -> Fusion:
    """The fusion after the row; itself if the row does nothing. context: a target and options."""
    fired = ROWS[name].fire(fusion, *context)
    return fusion if fired is None else fired.after
