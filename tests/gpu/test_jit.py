# SPDX-License-Identifier: Apache-2.0
"""thunder_fuser.jit on a CUDA device: the results, gradients and retraces of thunder.jit."""

from __future__ import annotations

from copy import deepcopy

import pytest
import thunder
import torch
import torch.nn.functional as F
from torch import nn

import thunder_fuser
from thunder_fuser import fuser
from thunder_fuser.fast_path.calls import fast_path_of

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(F.gelu(self.up(self.norm(x))), 0.25, training=self.training)
        return x + self.down(y)


def pair() -> list[nn.Module]:
    torch.manual_seed(0)
    model = Block().cuda()
    theirs = thunder.jit(deepcopy(model), executors=[fuser])
    return [thunder_fuser.jit(model, executors=[fuser]), theirs]


@pytest.mark.parametrize("autocast", [False, True])
def test_training_steps_are_the_same(autocast: bool) -> None:
    found = []
    for jitted in pair():
        torch.manual_seed(3)
        x = torch.randn(4, 32, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD(jitted.parameters(), lr=0.1)
        losses = []
        for _ in range(4):
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = jitted(x).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        jitted.eval()
        with torch.no_grad():
            found.append([*losses, jitted(x), jitted(x), x.grad, *jitted.state_dict().values()])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_a_change_of_device() -> None:
    jitted, _ = pair()
    x = torch.randn(4, 32, device="cuda")
    for _ in range(3):
        jitted(x)
    assert (thunder.cache_misses(jitted), len(fast_path_of(jitted).known)) == (1, 1)
    with pytest.raises(RuntimeError):
        jitted(x.cpu())
    model = jitted._model.cpu()
    torch.testing.assert_close(jitted.eval()(x.cpu()), model(x.cpu()))


def test_streams() -> None:
    jitted, _ = pair()
    x = torch.randn(4, 32, device="cuda")
    wanted = jitted.eval()(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = [jitted(x) for _ in range(3)]
    torch.cuda.current_stream().wait_stream(stream)
    for one in found:
        torch.testing.assert_close(one, wanted)


def test_cuda_graphs() -> None:
    found = []
    for jit in (thunder_fuser.jit, thunder.jit):
        torch.manual_seed(0)
        jitted = jit(Block().cuda(), executors=[fuser], fuser_cuda_graphs=True)
        torch.manual_seed(3)
        kept = []
        for step in range(6):
            x = torch.full((4, 32), float(step), device="cuda", requires_grad=True)
            kept.append(jitted(x))
            kept[-1].square().mean().backward()
        found.append([*kept, x.grad, *(p.grad for p in jitted.parameters())])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
