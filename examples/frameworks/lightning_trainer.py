# SPDX-License-Identifier: Apache-2.0
"""The Trainer of Lightning: a LightningModule that holds a jitted net, and its checkpoints.

It trains three times: in eager torch, with the fuser, and with the fuser from the checkpoint of
half of the steps. The losses are equal, and eager torch loads the same checkpoint.

Run it: python examples/frameworks/lightning_trainer.py
"""

import logging
import tempfile

import thunder_fuser

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F

STEPS = 20


class Classifier(lightning.LightningModule):
    """The net is jitted, and not this module, whose methods the Trainer calls and replaces."""

    def __init__(self, is_jitted: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8))
        self.net = thunder_fuser.jit(net) if is_jitted else net
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        x, wanted = batch
        loss = F.cross_entropy(self.net(x), wanted)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(model: Classifier, folder: str, checkpoint: str | None = None) -> list[float]:
    """The loss of each step."""
    x = torch.randn(32 * STEPS // 2, 16, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(x, x[:, :8].argmax(1))
    trainer = lightning.Trainer(
        max_epochs=2, devices=1, precision="bf16-mixed", gradient_clip_val=1.0, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, "{step}", save_top_k=-1)],
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(data, batch_size=32)
    trainer.fit(model, loader, ckpt_path=checkpoint)
    return model.losses


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        half = f"{folder}/fuser/step=10.ckpt"
        expected = train(Classifier(is_jitted=False), f"{folder}/eager")
        losses = train(Classifier(is_jitted=True), f"{folder}/fuser")
        resumed = train(Classifier(is_jitted=True), f"{folder}/resumed", half)
        # The names in a checkpoint are those of the eager module.
        Classifier.load_from_checkpoint(half, is_jitted=False)
    for step in range(0, STEPS, 4):
        print(f"step {step:2}  loss {losses[step]:.3f}  eager {expected[step]:.3f}")
    torch.testing.assert_close(losses, expected, atol=5e-3, rtol=0)
    torch.testing.assert_close(resumed, losses[10:], atol=1e-6, rtol=0)
    print(f"the loss of the resumed run ends at {resumed[-1]:.3f} too")


main()
