# SPDX-License-Identifier: Apache-2.0
"""A name -> a model with random weights and the inputs of a step.

    gpt2        nanoGPT's, 12 layers                      resnet50  convolutions, batch norms
    llama, qwen, pythia, gemma, phi  litgpt's             vit       a vision transformer
    hf_qwen, bert, moe  of transformers, by thunderfx     unet      group norms and attention
    gpt2_short, gpt2_128, llama_short, llama_128, vit_short: at which a GPU waits for Python

Each model takes its inputs and gives the loss. In inference it gives logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.train_step import GPT2, Model
from benchmarks.train_step import SMALL as SMALL_GPT2
from benchmarks.whole_models.images import ResNet, UNet, VisionTransformer

Inputs = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a batch: sequences of tokens or images. layers and width: None for the model's own."""

    batch: int
    length: int
    layers: int | None = None
    shrink: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """How a model is made, and at which sizes on CUDA and on a CPU.

    by: thunder.jit, or thunderfx for what is compiled through Dynamo.
    """

    make: Callable[[Sizes], tuple[nn.Module, Callable[[], Inputs]]]
    cuda: Sizes
    cpu: Sizes
    by: str = "thunder.jit"


class WithLoss(nn.Module):
    """logits = model(x)  ->  in training the mean cross entropy, in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.model(x)
        logits = getattr(logits, "logits", logits)
        if not self.training:
            return logits
        return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


class WithSquares(nn.Module):
    """image = model(x)  ->  in training the mean square of its distance to the target."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        made = self.model(x)
        return F.mse_loss(made.float(), target.float()) if self.training else made


def _tokens(words: int, sizes: Sizes) -> Callable[[], Inputs]:
    def inputs() -> Inputs:
        # Not two parts of one memory, which Thunder takes for one tensor beside a write in place.
        one, other = (torch.randint(0, words, (sizes.batch, sizes.length)) for _ in range(2))
        return one, other

    return inputs


def _gpt2(sizes: Sizes) -> tuple[nn.Module, Callable[[], Inputs]]:
    block = replace(Model().block, batch=sizes.batch, sequence=sizes.length)
    model = SMALL_GPT2 if sizes.shrink else Model(block=block)
    return WithLoss(_Logits(model)), _tokens(model.vocabulary, Sizes(
        model.block.batch, model.block.sequence
    ))  # fmt: skip


class _Logits(GPT2):
    """GPT-2 without its loss."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.logits(tokens)


def _litgpt(name: str, **shrunk: Any) -> Callable[[Sizes], tuple[nn.Module, Callable[[], Inputs]]]:
    def make(sizes: Sizes) -> tuple[nn.Module, Callable[[], Inputs]]:
        from litgpt import GPT, Config  # noqa: PLC0415  an extra

        given: dict[str, Any] = {"n_layer": sizes.layers, "block_size": sizes.length}
        if sizes.shrink:
            small = {"n_embd": 256, "n_head": 8, "head_size": 32, "intermediate_size": 704}
            given |= small | {"padded_vocab_size": 2048, "vocab_size": 2048} | shrunk
        config = Config.from_name(name, **{k: v for k, v in given.items() if v is not None})
        return WithLoss(GPT(config)), _tokens(config.padded_vocab_size, sizes)

    return make


def _hugging_face(
    model: str, config: str, **given: Any
) -> Callable[[Sizes], tuple[nn.Module, Callable[[], Inputs]]]:
    def make(sizes: Sizes) -> tuple[nn.Module, Callable[[], Inputs]]:
        import transformers  # noqa: PLC0415  an extra

        values = dict(given, num_hidden_layers=sizes.layers)
        if sizes.shrink:
            values |= {
                "hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 704,
                "vocab_size": 2048,
            }  # fmt: skip
            smaller = {"num_key_value_heads": 2, "moe_intermediate_size": 128, "num_experts": 8,
                       "num_experts_per_tok": 2, "head_dim": 32}  # fmt: skip
            values |= {name: size for name, size in smaller.items() if name in given}
        made = getattr(transformers, config)(**values)
        return WithLoss(getattr(transformers, model)(made)), _tokens(made.vocab_size, sizes)

    return make


def _images(model: Callable[[bool], nn.Module]) -> Callable[[Sizes], Any]:
    def make(sizes: Sizes) -> tuple[nn.Module, Callable[[], Inputs]]:
        def inputs() -> Inputs:
            image = torch.randn(sizes.batch, 3, sizes.length, sizes.length)
            return image, torch.randint(0, 10, (sizes.batch,))

        return WithLoss(model(sizes.shrink)), inputs

    return make


def _unet(sizes: Sizes) -> tuple[nn.Module, Callable[[], Inputs]]:
    channels = 32 if sizes.shrink else 320

    def inputs() -> Inputs:
        one, other = torch.randn(2, sizes.batch, channels, sizes.length, sizes.length)
        return one, other

    return WithSquares(UNet(channels)), inputs


_QWEN = {
    "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960,
    "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True,
    "use_cache": False,
}  # fmt: skip
# Of Qwen3-30B-A3B. The products of all experts are one: with a loop over experts, shapes depend on
# data, which Thunder refuses. In float32 transformers has an operator of its own for them.
_QWEN_MOE = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "use_cache": False,
    "experts_implementation": "grouped_mm",
}  # fmt: skip
_CPU = Sizes(2, 128, 2, shrink=True)
ENTRIES = {
    "gpt2": Entry(_gpt2, Sizes(8, 1024), Sizes(2, 16, shrink=True)),
    "gpt2_short": Entry(_gpt2, Sizes(1, 128), Sizes(2, 16, shrink=True)),
    "gpt2_128": Entry(_gpt2, Sizes(8, 128), Sizes(2, 16, shrink=True)),
    "llama": Entry(_litgpt("Llama-3.2-1B", n_query_groups=2), Sizes(4, 2048, 4), _CPU),
    "llama_short": Entry(_litgpt("Llama-3.2-1B", n_query_groups=2), Sizes(1, 256, 4), _CPU),
    "llama_128": Entry(_litgpt("Llama-3.2-1B", n_query_groups=2), Sizes(1, 128, 4), _CPU),
    "qwen": Entry(_litgpt("Qwen2.5-1.5B", n_query_groups=2), Sizes(4, 2048, 6), _CPU),
    "pythia": Entry(_litgpt("pythia-410m"), Sizes(8, 1024, 8), _CPU),
    "gemma": Entry(_litgpt("Gemma-2-2b", n_query_groups=4), Sizes(2, 2048, 4), _CPU),
    "phi": Entry(_litgpt("phi-2"), Sizes(4, 1024, 4), _CPU),
    "moe": Entry(
        _hugging_face("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **_QWEN_MOE),
        Sizes(4, 2048, 2), _CPU, "thunderfx",
    ),
    "hf_qwen": Entry(
        _hugging_face("Qwen2ForCausalLM", "Qwen2Config", **_QWEN), Sizes(4, 2048, 4), _CPU,
        "thunderfx",
    ),
    "bert": Entry(
        _hugging_face("BertForMaskedLM", "BertConfig", hidden_dropout_prob=0.0,
                      attention_probs_dropout_prob=0.0),
        Sizes(16, 512, 12), _CPU, "thunderfx",
    ),
    "resnet50": Entry(_images(ResNet), Sizes(64, 224), Sizes(4, 64, shrink=True)),
    "vit": Entry(_images(VisionTransformer), Sizes(32, 224), Sizes(4, 64, shrink=True)),
    "vit_short": Entry(_images(VisionTransformer), Sizes(1, 224), Sizes(1, 64, shrink=True)),
    "unet": Entry(_unet, Sizes(8, 64), Sizes(2, 32, shrink=True)),
}  # fmt: skip
