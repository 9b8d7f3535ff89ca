# SPDX-License-Identifier: Apache-2.0
"""The Trainer of Lightning: a LightningModule that holds a jitted net, and a checkpoint.

It trains three times: in eager torch, with the fuser, and with the fuser from the checkpoint of half
of the steps. The losses are equal.

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
    """The net is jitted, and not this module: the Trainer replaces methods of this one."""

    def __init__(self, is_jitted: bool) -> None:
        super().__init__()
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
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def train(model: Classifier, folder: str, checkpoint: str | None = None) -> list[float]:
    x = torch.randn(32 * STEPS, 16, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(x, x[:, :8].argmax(1))
    trainer = lightning.Trainer(
        max_steps=STEPS, gradient_clip_val=1.0, default_root_dir=folder, accelerator="auto",
        devices=1, precision="bf16-mixed", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, "half", every_n_train_steps=STEPS // 2, save_top_k=-1)],
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(data, batch_size=32)
    trainer.fit(model, loader, ckpt_path=checkpoint)
    return model.losses


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        expected = train(Classifier(is_jitted=False), folder + "/eager")
        torch.manual_seed(0)
        losses = train(Classifier(is_jitted=True), folder + "/fuser")
        resumed = train(Classifier(is_jitted=True), folder + "/fuser", folder + "/fuser/half.ckpt")
        # The names in the checkpoint are those of the eager model.
        names = torch.load(folder + "/fuser/half.ckpt")["state_dict"]
        Classifier(is_jitted=False).load_state_dict(names)
    print(len(resumed), losses, expected, resumed)


main()
