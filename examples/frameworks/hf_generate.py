# SPDX-License-Identifier: Apache-2.0
"""`generate` of Hugging Face, with its two caches of keys and values.

    static     has the room of the longest text from the start, so the model meets two shapes: the
               prompt's and that of one token. What was compiled serves all further texts
    dynamic    grows with each token, and each new length is compiled: for texts of few lengths

The tokens are those of eager torch. Nothing is downloaded: the model is random.

Run it: python examples/frameworks/hf_generate.py
"""

import time

from thunder_fuser import fuser

import torch
from thunder.dynamo import ThunderCompiler
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip


def generate(model: LlamaForCausalLM, prompt: torch.Tensor, cache: str, new: int) -> torch.Tensor:
    return model.generate(
        prompt, max_new_tokens=new, do_sample=False, pad_token_id=0, cache_implementation=cache
    )


def main() -> None:
    torch.manual_seed(0)
    eager = LlamaForCausalLM(CONFIG).eval()
    prompt = torch.randint(128, (2, 5))
    for cache, new in ("static", 12), ("dynamic", 3):
        expected = generate(eager, prompt, cache, new)
        fast = LlamaForCausalLM(CONFIG).eval()
        fast.load_state_dict(eager.state_dict())
        fast.compile(backend=ThunderCompiler(executors=[fuser]))
        for text in ("first", "second", "third"):
            began = time.perf_counter()
            tokens = generate(fast, prompt, cache, new)
            seconds = time.perf_counter() - began
            print(f"{cache} cache, {text} text of {new} tokens: {seconds:.2f} s")
            assert torch.equal(tokens, expected)


main()
