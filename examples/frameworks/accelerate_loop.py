# SPDX-License-Identifier: Apache-2.0
"""accelerate of Hugging Face: jit the model, then prepare it. With accumulated and clipped
gradients, a schedule, and the whole state saved after half of the steps and loaded again.

It trains in eager torch and with the fuser. The losses are equal.

Run it: python examples/frameworks/accelerate_loop.py
"""

import tempfile

import thunder_fuser

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F

STEPS, PARTS = 20, 2


def train(is_jitted: bool, folder: str) -> list[float]:
    """The loss of each part of a step."""
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=PARTS)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8))
    if is_jitted:
        net = thunder_fuser.jit(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS)
    x = torch.randn(32 * STEPS, 16, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(x, x[:, :8].argmax(1))
    model, optimizer, loader, schedule = accelerator.prepare(
        net, optimizer, torch.utils.data.DataLoader(data, batch_size=32), schedule
    )
    losses = []
    for number, (x, wanted) in enumerate(loader):
        if number == STEPS // 2:
            accelerator.save_state(folder)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            accelerator.load_state(folder)
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), wanted)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        expected = train(False, f"{folder}/eager")
        losses = train(True, f"{folder}/fuser")
    for step in range(0, STEPS, 4):
        print(f"step {step:2}  loss {losses[step]:.3f}  eager {expected[step]:.3f}")
    torch.testing.assert_close(losses, expected, atol=5e-3, rtol=0)


main()
