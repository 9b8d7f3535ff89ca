# SPDX-License-Identifier: Apache-2.0
"""The Trainer of Hugging Face with a Llama: the model is compiled in place, and keeps its class.

It trains twice, in eager torch and with the fuser, on the same random tokens. The losses are equal.
Nothing is downloaded: the model is made from a configuration.

Run it: python examples/frameworks/hf_trainer.py
"""

import tempfile

from thunder_fuser import fuser

import torch
from thunder.dynamo import ThunderCompiler
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

CONFIG = LlamaConfig(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip


class Tokens(torch.utils.data.Dataset):
    """Sequences of random tokens; each predicts its own next ones."""

    def __init__(self) -> None:
        self.tokens = torch.randint(128, (64, 32), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def train(model: LlamaForCausalLM, folder: str) -> list[float]:
    """The loss of each step."""
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=8,
        learning_rate=1e-3, warmup_steps=2, lr_scheduler_type="cosine", logging_steps=1,
        disable_tqdm=True, report_to=[], save_steps=4, seed=0,
        # Columns are chosen by the signature of forward, which a compiled model does not show.
        remove_unused_columns=False,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=Tokens())
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def main() -> None:
    set_seed(0)
    eager = LlamaForCausalLM(CONFIG)
    fast = LlamaForCausalLM(CONFIG)
    fast.load_state_dict(eager.state_dict())
    compiler = ThunderCompiler(executors=[fuser])
    fast.compile(backend=compiler)
    with tempfile.TemporaryDirectory() as folder:
        expected = train(eager, folder)
        losses = train(fast, folder)
    for step, (loss, wanted) in enumerate(zip(losses, expected)):
        print(f"step {step}  loss {loss:.4f}  eager {wanted:.4f}")
    assert max(abs(a - b) for a, b in zip(losses, expected)) < 2e-3
    print(f"graphs: {len(compiler.subgraph_infos)}")


main()
