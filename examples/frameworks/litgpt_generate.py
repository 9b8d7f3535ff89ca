# SPDX-License-Identifier: Apache-2.0
"""litgpt's `generate`, with its cache of keys and values.

The model meets two shapes, the prompt's and that of one token: two programs, which serve all places
of all texts. The tokens are those of eager torch. Nothing is downloaded: the model is random.

Run it: python examples/frameworks/litgpt_generate.py
"""

import time

import thunder_fuser

import torch
from litgpt import GPT, Config
from litgpt.generate.base import generate

CONFIG = Config(
    block_size=64, vocab_size=100, padded_vocab_size=128, n_layer=1, n_head=4, n_embd=64,
    n_query_groups=2, rotary_percentage=1.0, bias=False, norm_class_name="RMSNorm",
    mlp_class_name="LLaMAMLP", intermediate_size=128,
)  # fmt: skip
LENGTH = 17


def main() -> None:
    torch.manual_seed(0)
    model = GPT(CONFIG).eval()
    model.set_kv_cache(batch_size=1)
    fast = thunder_fuser.jit(model)
    for text in ("first", "second", "third"):
        prompt = torch.randint(100, (5,))
        began = time.perf_counter()
        tokens = generate(fast, prompt, LENGTH, top_k=1)
        print(f"{text} text of {LENGTH - 5} tokens: {time.perf_counter() - began:.2f} s")
        assert torch.equal(tokens, generate(model, prompt, LENGTH, top_k=1))


main()
