# SPDX-License-Identifier: Apache-2.0
"""A language model generates text: the prompt in one call, then a token a call, a static cache.

The keys and values of each layer have the room of the longest text from the start. index_copy_
writes those of new tokens. So two programs serve all texts: one for prompts of this length, one for
a token at any position.

Run it: python examples/generate.py
"""

import time

import thunder_fuser

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS, WIDTH, HEADS, ROOM = 512, 128, 4, 64


class Layer(nn.Module):
    """Attention to the cache, then a gated MLP, each added to its input."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, HEADS, ROOM, WIDTH // HEADS))

    def forward(self, x: torch.Tensor, places: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        q, k, v = (
            part(y).view(*y.shape[:2], HEADS, -1).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        self.keys.index_copy_(2, places, k)
        self.values.index_copy_(2, places, v)
        seen = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """Words at `places` -> logits of the word behind the last of them."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(ROOM, WIDTH)
        self.layers = nn.ModuleList(Layer(batch) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer("all_places", torch.arange(ROOM))

    def forward(self, words: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        mask = self.all_places[None, :] <= places[:, None]
        x = self.words(words) + self.positions(places)
        for layer in self.layers:
            x = layer(x, places, mask)
        return self.head(x[:, -1])


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    return logits.argmax(-1, keepdim=True)


def drawn(logits: torch.Tensor, temperature: float = 0.8, k: int = 50) -> torch.Tensor:
    """One of the k likeliest words, at random."""
    top = logits.topk(k)
    picked = torch.multinomial(torch.softmax(top.values / temperature, -1), 1)
    return top.indices.gather(-1, picked)


@torch.no_grad()
def generate(model, prompt: torch.Tensor, new: int, choose=likeliest) -> torch.Tensor:
    count = prompt.shape[1]
    word = choose(model(prompt, torch.arange(count, device=prompt.device)))
    words = [prompt, word]
    for place in range(count, count + new - 1):
        word = choose(model(word, torch.tensor([place], device=prompt.device)))
        words.append(word)
    return torch.cat(words, 1)


def main() -> None:
    torch.manual_seed(0)
    eager = Model(batch=2).to(DEVICE).eval()
    # In a CUDA graph a token is one launch. On a CPU the option changes nothing.
    fast = thunder_fuser.jit(eager, fuser_cuda_graphs=DEVICE == "cuda")
    prompt = torch.randint(WORDS, (2, 8), device=DEVICE)
    expected = generate(eager, prompt, 20)
    for text in ("first", "second", "third"):
        start = time.perf_counter()
        found = generate(fast, prompt, 20)
        print(f"{text} text of 20 tokens: {time.perf_counter() - start:.2f} s")
        assert torch.equal(found, expected)
    print("sampled:", generate(fast, prompt, 20, drawn)[0, 8:].tolist())


main()
