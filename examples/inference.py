# SPDX-License-Identifier: Apache-2.0
"""A Llama-style block in inference: its result beside eager torch's, and what became of it.

Run it: python examples/inference.py
"""

from thunder_fuser import fuser  # before thunder, which otherwise warns of a missing package

import thunder
import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    """An RMS norm, then a gated MLP (SwiGLU), added to the input."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def main() -> None:
    torch.manual_seed(0)
    model = Block(256, 768).to(DEVICE).eval()
    fast = thunder.jit(model, executors=[fuser])
    x = torch.randn(4, 64, 256, device=DEVICE)
    with torch.no_grad():
        difference = (fast(x) - model(x)).abs().max()
    print(f"largest difference from eager torch: {difference:.1e}")
    print(thunder.last_traces(fast)[-1])  # the regions, with the operations inside


main()
