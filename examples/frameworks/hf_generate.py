# SPDX-License-Identifier: Apache-2.0
"""Text generation with `generate` of Hugging Face, with the two kinds of cache.

A growing cache (the default) gives the model other shapes for each token. A static cache has
the room of the longest text from the start: the model sees two shapes, of the prompt and of one token.

Run it: python examples/frameworks/hf_generate.py
"""

import time

from thunder_fuser import fuser

import torch
from thunder.dynamo import ThunderCompiler
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip
NEW = 8


def main() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    prompt = torch.randint(128, (2, 5))
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(prompt, **settings)
    for cache in ("dynamic", "static"):
        fast = LlamaForCausalLM(CONFIG).eval()
        fast.load_state_dict(model.state_dict())
        compiler = ThunderCompiler(executors=[fuser])
        fast.compile(backend=compiler)
        for call in ("first", "second"):
            began = time.perf_counter()
            result = fast.generate(prompt, cache_implementation=cache, **settings)
            seconds = time.perf_counter() - began
            assert torch.equal(result, expected), (result, expected)
            print(f"{cache} cache, {call} call: {seconds:.1f} s, the tokens of eager torch")
        print(f"{cache} cache: {len(compiler.subgraph_infos)} graphs")


main()
