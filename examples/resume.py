# SPDX-License-Identifier: Apache-2.0
"""A training loop with all that a long one has: torch.amp, accumulated and clipped gradients, a
learning rate that changes, and a checkpoint from which it goes on.

It trains twice: once in one go, and once with a stop after half of the steps. The losses are equal.

Run it: python examples/resume.py [CHECKPOINT]
"""

import math
import sys
from typing import Any

import thunder_fuser

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16  # for torch.float16 give GradScaler enabled=True
CLASSES, STEPS, WARM_UP, PARTS = 8, 40, 5, 4


def rate(step: int) -> float:
    """A share of the learning rate: it rises, then falls as a cosine."""
    return min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / STEPS))


class Training:
    """A model with what changes while it is trained, all of which a checkpoint keeps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(16, 128), nn.LayerNorm(128), nn.GELU(), nn.Dropout(0.1),
            nn.Linear(128, CLASSES),
        )  # fmt: skip
        self.model = thunder_fuser.jit(model.to(DEVICE))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        # The optimizer holds the rate as a number, which no traced function reads.
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)
        self.scaler = torch.amp.GradScaler(DEVICE, enabled=DTYPE is torch.float16)
        self.done = 0

    def parts(self) -> dict[str, Any]:
        names = ("model", "optimizer", "schedule", "scaler")
        return {name: getattr(self, name) for name in names}

    def save(self, path: str) -> None:
        states = {name: part.state_dict() for name, part in self.parts().items()}
        random = {"random": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()}
        torch.save({**states, **random, "done": self.done}, path)

    def load(self, path: str) -> None:
        saved = torch.load(path)
        for name, part in self.parts().items():
            part.load_state_dict(saved[name])
        self.done = saved["done"]
        torch.set_rng_state(saved["random"])
        torch.cuda.set_rng_state_all(saved["cuda"])

    def step(self) -> float:
        """The loss of one batch, of which each part adds its gradients."""
        total = 0.0
        for part in range(PARTS):
            x, wanted = batch(self.done * PARTS + part)
            with torch.autocast(DEVICE, dtype=DTYPE):
                loss = F.cross_entropy(self.model(x).float(), wanted) / PARTS
            self.scaler.scale(loss).backward()
            total += loss.item()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.done += 1
        return total


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and which of eight points is nearest: the same for each run."""
    points = torch.randn(CLASSES, 16, generator=torch.Generator().manual_seed(1))
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(2 + number))
    return x.to(DEVICE), torch.cdist(x, points).argmin(1).to(DEVICE)


def main(checkpoint: str) -> None:
    whole = Training()
    expected = [whole.step() for _ in range(STEPS)]
    first = Training()
    losses = [first.step() for _ in range(STEPS // 2)]
    first.save(checkpoint)
    second = Training()
    second.load(checkpoint)
    losses += [second.step() for _ in range(STEPS - second.done)]
    for step in range(0, STEPS, 8):
        print(f"step {step:2}  loss {losses[step]:.3f}  in one go {expected[step]:.3f}")
    assert losses == expected, "the resumed run is another one"
    print(f"the loss fell from {losses[0]:.3f} to {losses[-1]:.3f}")


main(*sys.argv[1:] or ["training.pt"])
