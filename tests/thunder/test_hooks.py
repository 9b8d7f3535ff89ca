# SPDX-License-Identifier: Apache-2.0
"""Objects that a traced program makes or changes: hooks of modules, results filled in by name,
modules; and scripts, which it may not call."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import thunder
import torch
from helpers.cases import rand
from torch import nn

import thunder_fuser
from thunder_fuser.errors import ThunderLimitError

Tensor = torch.Tensor


@dataclass
class Output(OrderedDict[str, Any]):
    """As the results of transformers: a key is an attribute too."""

    last: Any = None
    states: Any = None

    def __post_init__(self) -> None:
        for key in ("last", "states"):
            if getattr(self, key) is not None:
                super().__setitem__(key, getattr(self, key))

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def test_a_key_that_is_set_later() -> None:
    def function(x: Tensor) -> Output:
        output = Output(last=x * 2)
        output["states"] = (x.exp(), x.tanh())
        output["last"] = output.last + 1
        return output

    x = rand(3)
    got, want = thunder_fuser.jit(function)(x), function(x)
    torch.testing.assert_close(got.last, want.last)
    torch.testing.assert_close(got.states, want.states)
    assert list(got) == ["last", "states"]


class Hooked(nn.Module):
    """Its layer has hooks for the time of a call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        handles = [
            self.layer.register_forward_hook(lambda module, args, y: seen.append(y * 2)),
            self.layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
        ]
        y = self.layer(x)
        for handle in handles:
            handle.remove()
        return y, seen[0]


def test_hooks_for_the_time_of_a_call() -> None:
    net = Hooked()
    jitted, x = thunder_fuser.jit(net), rand(2, 3)
    for _ in range(3):
        torch.testing.assert_close(jitted(x), net(x))
        assert not net.layer._forward_hooks
        assert not net.layer._forward_pre_hooks
    assert thunder.cache_misses(jitted) == 1


@pytest.mark.parametrize(
    ("name", "layers"), [("llama", 2), ("bert", 1), ("clip_text_model", 1), ("vit", 1)]
)
def test_hidden_states_and_attentions(name: str, layers: int) -> None:
    """transformers collects them by hooks, which it registers where they are first asked for."""
    transformers = pytest.importorskip("transformers", minversion="5")
    sizes = {"hidden_size": 16, "num_hidden_layers": layers, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "image_size": 8, "patch_size": 4, "num_key_value_heads": 1}
    sizes |= {"vocab_size": 31, "attn_implementation": "eager"}
    config = transformers.CONFIG_MAPPING[name](**sizes)
    torch.manual_seed(0)
    net = transformers.AutoModel.from_config(config).eval()
    x = rand(2, 3, 8, 8) if name == "vit" else torch.arange(10).view(2, 5)
    asked = {"output_hidden_states": True, "output_attentions": True}
    asked |= {"use_cache": False} if name == "llama" else {}
    jitted = thunder_fuser.jit(net)
    with torch.no_grad():
        outputs = [jitted(x, **asked), jitted(x, **asked), net(x, **asked)]
    for output in outputs:
        assert len(output.hidden_states) == layers + 1
        assert len(output.attentions) == layers
        for key in ("hidden_states", "attentions"):
            torch.testing.assert_close(output[key], outputs[2][key], rtol=1e-4, atol=1e-5)


class Classifier(nn.Module):
    """As those of transformers, it makes its loss in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        loss = nn.CrossEntropyLoss(label_smoothing=0.1)
        return loss(nn.LayerNorm(3, elementwise_affine=False)(self.layer(x)), targets)


def test_modules_that_a_program_makes() -> None:
    net, x, targets = Classifier(), rand(5, 4), torch.arange(5) % 3
    jitted = thunder_fuser.jit(net, fuser_strict=True)
    for _ in range(2):
        gradients = []
        for model in (jitted, net):
            loss = model(x, targets)
            loss.backward()
            gradients.append([loss.detach(), *(p.grad for p in net.parameters())])
            net.zero_grad()
        torch.testing.assert_close(*gradients)


@torch.jit.script
def doubled(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize(
    "function", [doubled, lambda x: doubled(x) + 1, torch.jit.script(nn.Linear(3, 3))], ids=range(3)
)
def test_scripts_are_refused(function: Any) -> None:
    """Thunder's interpreter would end the process."""
    with pytest.raises(ThunderLimitError, match="of TorchScript"):
        thunder_fuser.jit(function)(rand(3))
