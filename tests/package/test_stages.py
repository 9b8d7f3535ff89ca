# SPDX-License-Identifier: Apache-2.0
"""The clock of the compiler's stages."""

from __future__ import annotations

import time

import pytest
import torch

from thunder_fuser import FusionDefinition
from thunder_fuser.base.stages import STAGES, stage, timed


def test_time_in_an_inner_stage_is_not_the_outer_ones() -> None:
    with timed() as found:
        with stage("outer"), stage("inner"):
            time.sleep(0.05)
        with stage("inner"):
            pass
    assert found["inner"].calls == 2 and found["outer"].calls == 1
    assert found["inner"].seconds >= 0.05 > found["outer"].seconds


def test_nothing_is_collected_outside_and_an_error_still_counts() -> None:
    with timed() as found, pytest.raises(ValueError, match="no"), stage("fails"):
        raise ValueError("no")
    with stage("later"):
        pass
    assert set(found) == {"fails"}


def test_every_stage_of_a_compilation_is_in_the_list() -> None:
    x = torch.ones(8, 3)
    with timed() as found:
        with FusionDefinition() as fd:
            t = fd.from_pytorch(x)
            fd.add_output(fd.ops.mul(fd.ops.exp(t), 7.25))
        fd.execute([x])
    assert set(STAGES) - {"claim", "record"} <= set(found) <= set(STAGES)
    assert found["lower"].calls == found["emit"].calls == 1
