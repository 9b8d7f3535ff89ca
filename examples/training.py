# SPDX-License-Identifier: Apache-2.0
"""A training loop with dropout, an optimizer and a checkpoint.

Run it: python examples/training.py [CHECKPOINT]
"""

import sys

from thunder_fuser import fuser  # before thunder, which otherwise warns of a missing package

import thunder
import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES = 8


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 128), nn.LayerNorm(128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, CLASSES)
    ).to(DEVICE)


def main(checkpoint: str) -> None:
    torch.manual_seed(0)
    # What is to be learned: to which of eight random points an input is nearest.
    points = torch.randn(CLASSES, 16, device=DEVICE)
    model = make_model()
    fast = thunder.jit(model, executors=[fuser])
    optimizer = torch.optim.AdamW(fast.parameters(), lr=3e-3)
    for step in range(101):
        x = torch.randn(128, 16, device=DEVICE)  # batches of one size: a new size is traced again
        wanted = torch.cdist(x, points).argmin(1)
        loss = F.cross_entropy(fast(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:3}  loss {loss.item():.3f}")
    torch.save(fast.state_dict(), checkpoint)

    restored = make_model()  # eager: the names in a checkpoint are those of the model
    restored.load_state_dict(torch.load(checkpoint))
    x = torch.randn(1000, 16, device=DEVICE)
    right = restored.eval()(x).argmax(1) == torch.cdist(x, points).argmin(1)
    print(f"right answers of the restored model: {right.float().mean():.0%}")


main(*sys.argv[1:] or ["checkpoint.pt"])
