# SPDX-License-Identifier: Apache-2.0
"""Lightning Fabric: jit, then set up. With mixed precision, and a checkpoint that Fabric writes.

Run it: python examples/frameworks/lightning_fabric.py
"""

import os
import tempfile

import thunder_fuser

import lightning
import torch
from torch import nn
from torch.nn import functional as F

STEPS = 20


def train(is_jitted: bool, checkpoint: str) -> list[float]:
    """The loss of each step. The second half is trained from the checkpoint."""
    fabric = lightning.Fabric(accelerator="auto", devices=1, precision="bf16-mixed")
    fabric.seed_everything(0, verbose=False)
    losses = []
    for half in range(2):
        net = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8))
        net = thunder_fuser.jit(net) if is_jitted else net
        model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
        state = {"model": model, "optimizer": optimizer}
        if half:
            fabric.load(checkpoint, state)
        for step in range(half * STEPS // 2, (half + 1) * STEPS // 2):
            x = torch.randn(32, 16, generator=torch.Generator().manual_seed(step))
            x, wanted = fabric.to_device((x, x[:, :8].argmax(1)))
            loss = F.cross_entropy(model(x), wanted)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        fabric.save(checkpoint, state)
    return losses


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "half.ckpt")
        expected = train(False, path)
        losses = train(True, path)
    print(losses, expected)


main()
