# SPDX-License-Identifier: Apache-2.0
"""Thunder's CUDAGraphTransform over fusions: the results are those of calls one by one."""

from __future__ import annotations

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.transforms.cudagraph import CUDAGraphTransform

from thunder_fuser import fuser
from thunder_fuser.demo.accuracy import results
from thunder_fuser.demo.blocks import BLOCKS, SMALL, make_block, make_input
from thunder_fuser.errors import LaunchError
from thunder_fuser.explain.jitted import jit

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_train_in_graphs(name: str, dtype: torch.dtype) -> None:
    block = make_block(name, SMALL, dtype, "cuda")
    in_graphs = thunder.jit(block, executors=[fuser], transforms=[CUDAGraphTransform()])
    one_by_one = jit(block, strict=True)
    for _ in range(4):
        x, gradient = make_input(SMALL, dtype, torch.device("cuda"))
        sample = torch.randn_like(x), torch.randn_like(gradient)
        expected = results(one_by_one, block, *sample)
        for key, found in results(in_graphs, block, *sample).items():
            assert torch.equal(found, expected[key]), key


def test_random_numbers_are_not_captured() -> None:
    dropped = thunder.jit(
        lambda x: F.dropout(x, 0.5) * 2, executors=[fuser], transforms=[CUDAGraphTransform()]
    )
    with pytest.raises(LaunchError, match="same numbers"):
        dropped(torch.ones(1000, device="cuda"))
