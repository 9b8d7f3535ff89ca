# SPDX-License-Identifier: Apache-2.0
"""litgpt's own training loop, `litgpt.pretrain.fit`, with a jitted GPT: gradients accumulated and
clipped, a learning rate that rises and falls, validation in between.

`litgpt.pretrain.main`, which calls `fit`, compiles by torch.compile and leaves no choice; so the
model is made and jitted here, as main does it else. It trains in eager torch and with the fuser.
The losses are equal. Nothing is downloaded: the model and its tokens are random.

Run it: python examples/frameworks/litgpt_pretrain.py
"""

import csv
import logging
import tempfile
from pathlib import Path

import thunder_fuser

import lightning
import torch
from lightning.fabric.loggers import CSVLogger
from litgpt import GPT, Config, pretrain
from litgpt.args import EvalArgs, TrainArgs

LENGTH = 16
CONFIG = Config.from_name(
    "Llama-3.2-1B", block_size=LENGTH, n_layer=1, n_embd=64, n_head=4, n_query_groups=2,
    head_size=16, intermediate_size=128, vocab_size=128, padded_vocab_size=128,
)  # fmt: skip
TRAIN = TrainArgs(
    global_batch_size=8, micro_batch_size=4, max_tokens=4 * LENGTH * 20, max_norm=1.0, min_lr=1e-4,
    lr_warmup_steps=2, log_interval=1, save_interval=None,
)  # fmt: skip


def train(is_jitted: bool, folder: Path) -> list[float]:
    """The loss of each step."""
    logger = CSVLogger(folder, flush_logs_every_n_steps=1)
    fabric = lightning.Fabric(devices=1, precision="32-true", loggers=[logger])
    torch.manual_seed(0)
    with fabric.init_module():
        model = GPT(CONFIG)
    pretrain.initialize_weights(fabric, model, CONFIG.n_layer, CONFIG.n_embd)
    model = fabric.setup(thunder_fuser.jit(model) if is_jitted else model)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-2))
    tokens = torch.randint(128, (16, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    loaders = fabric.setup_dataloaders(
        torch.utils.data.DataLoader(tokens, batch_size=4),
        torch.utils.data.DataLoader(tokens[:8], batch_size=4),
    )
    state = {"model": model, "optimizer": optimizer, "iter_num": 0, "step_count": 0}
    pretrain.fit(
        fabric, 1, state, *loaders, out_dir=folder, tokenizer_dir=None, train=TRAIN,
        eval=EvalArgs(interval=5, max_iters=2, final_validation=False),
    )  # fmt: skip
    with open(Path(logger.log_dir) / "metrics.csv") as file:
        return [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]


def main() -> None:
    logging.getLogger("lightning").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        expected = train(False, Path(folder, "eager"))
        losses = train(True, Path(folder, "fuser"))
    for step, row in enumerate(zip(losses, expected, strict=True)):
        print("step {}  loss {:.4f}  eager {:.4f}".format(step, *row))
    torch.testing.assert_close(losses, expected, atol=1e-3, rtol=0)


main()
