# SPDX-License-Identifier: Apache-2.0
"""The Trainer of Hugging Face with a small Llama: the model is compiled in place, and keeps its
class, so the Trainer saves and loads it as before.

It trains three times: in eager torch, with the fuser, and with the fuser from the checkpoint of
half of the steps. The losses are equal. Nothing is downloaded: the model is random.

Run it: python examples/frameworks/hf_trainer.py
"""

import tempfile

from thunder_fuser import fuser

import torch
from thunder.dynamo import ThunderCompiler
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

CONFIG = LlamaConfig(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip
STEPS = 6


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences of random tokens, in which the model learns to predict the next ones."""

    def __init__(self) -> None:
        self.tokens = torch.randint(128, (48, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def train(is_compiled: bool, folder: str, checkpoint: str | None = None) -> list[float]:
    """The loss of each step, as the Trainer logs it."""
    set_seed(0)
    model = LlamaForCausalLM(CONFIG)
    if is_compiled:
        model.compile(backend=ThunderCompiler(executors=[fuser]))
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=STEPS,
        learning_rate=1e-2, lr_scheduler_type="cosine", max_grad_norm=1.0, logging_steps=1,
        save_steps=STEPS // 2, report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=Tokens())
    trainer.train(resume_from_checkpoint=checkpoint)
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        expected = train(False, f"{folder}/eager")
        losses = train(True, f"{folder}/fuser")
        resumed = train(True, f"{folder}/fuser", f"{folder}/fuser/checkpoint-{STEPS // 2}")
    for step, row in enumerate(zip(losses, resumed, expected, strict=True)):
        print("step {}  loss {:.4f}  resumed {:.4f}  eager {:.4f}".format(step, *row))
    torch.testing.assert_close(losses, expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(resumed, expected, atol=1e-3, rtol=0)


main()
