# SPDX-License-Identifier: Apache-2.0
"""Functions that Thunder leaves to torch, on a CUDA device, on torch's own samples."""

from __future__ import annotations

import pytest
import torch
from helpers.torch_samples import assert_as_good, called, doubled, known, samples

from thunder_fuser.explain.jitted import jit
from thunder_fuser.functions import FUNCTIONS
from thunder_fuser.functions.define import Rewrite
from thunder_fuser.functions.pointwise import CASTS

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]

DRAWN = {"torch.nn.functional.dropout"}  # no two draws are equal; see test_gpu.py
NAMES = [
    id.removeprefix("torch.").removeprefix("Tensor.")
    for id, one in FUNCTIONS.items()
    if isinstance(one, Rewrite) and id not in {*CASTS, *DRAWN}
]
COUNTS = {torch.float32: 2, torch.bfloat16: 2}


@pytest.mark.parametrize("name", sorted({*NAMES} & {*known()}))
def test_as_exact_as_eager(name: str) -> None:
    op = known()[name][1]
    for dtype, count in COUNTS.items():
        for given in samples(name, dtype, count, "cuda"):
            exact = called(op, doubled(given))
            try:
                got = called(jit(op), given)
            except NotImplementedError:
                continue  # Thunder cannot do it at all; tests/thunder/test_functions.py says where
            assert_as_good(got, called(op, given), exact)
