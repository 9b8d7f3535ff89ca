# SPDX-License-Identifier: Apache-2.0
"""Lightning Fabric: jit the model, then set it up. With mixed precision, clipped gradients and a
checkpoint after half of the steps, from which the second half starts anew.

It trains in eager torch and with the fuser. The losses are equal.

Run it: python examples/frameworks/lightning_fabric.py
"""

import tempfile

import thunder_fuser

import lightning
import torch
from torch import nn
from torch.nn import functional as F

STEPS = 20


def train(is_jitted: bool, checkpoint: str) -> list[float]:
    """The loss of each step."""
    fabric = lightning.Fabric(devices=1, precision="bf16-mixed")
    torch.manual_seed(0)
    losses = []
    for half in range(2):
        net = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8))
        if is_jitted:
            net = thunder_fuser.jit(net)
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
        expected = train(False, f"{folder}/eager.ckpt")
        losses = train(True, f"{folder}/fuser.ckpt")
    for step in range(0, STEPS, 4):
        print(f"step {step:2}  loss {losses[step]:.3f}  eager {expected[step]:.3f}")
    torch.testing.assert_close(losses, expected, atol=5e-3, rtol=0)


main()
