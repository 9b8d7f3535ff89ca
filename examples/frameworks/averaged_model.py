# SPDX-License-Identifier: Apache-2.0
"""An average of a model's parameters over its training, by `torch.optim.swa_utils`, whose batch
norms are updated at the end.

The jitted model trains the parameters of the eager one, which is averaged: `update_bn` makes batch
norms count in Python, which Thunder does not read. In the end the average is jitted too. It trains
in eager torch and with the fuser. The results are equal.

Run it: python examples/frameworks/averaged_model.py
"""

from collections.abc import Callable

import thunder_fuser

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = 20


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(number))
    return x.to(DEVICE), x[:, :8].argmax(1).to(DEVICE)


def train(compiled: Callable[[nn.Module], nn.Module]) -> tuple[nn.Module, nn.Module]:
    """The model and the average."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(16, 64, bias=False), nn.BatchNorm1d(64), nn.GELU(), nn.Linear(64, 8)
    ).to(DEVICE)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    model = compiled(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        x, wanted = batch(step)
        F.cross_entropy(model(x), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(net)
    update_bn((batch(step)[0] for step in range(STEPS)), average)
    return model, compiled(average.module)


def main() -> None:
    x, wanted = batch(STEPS)
    of_eager, of_fuser = (
        [module.eval()(x) for module in train(compiled)]
        for compiled in (lambda module: module, thunder_fuser.jit)
    )
    for name, result, expected in zip(("model", "average"), of_fuser, of_eager, strict=True):
        loss, loss_of_eager = (F.cross_entropy(y, wanted).item() for y in (result, expected))
        print(f"{name:8} loss {loss:.4f}  eager {loss_of_eager:.4f}")
        torch.testing.assert_close(result, expected, atol=1e-3, rtol=0)


main()
