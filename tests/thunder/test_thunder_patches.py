# SPDX-License-Identifier: Apache-2.0
"""Thunder's silent errors that thunder_patches repairs, by every way of jitting."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import thunder
import torch
from helpers.forked import python
from torch import nn
from torch._dynamo.mutation_guard import GenerationTracker, install_generation_tagging_init
from torch.optim.swa_utils import AveragedModel

import thunder_fuser
from thunder_fuser import fuser
from thunder_fuser.errors import CopyError, FallbackWarning, LostWriteWarning

Jit = Callable[..., Any]
JITS: dict[str, Jit] = {
    "thunder.jit": thunder.jit,
    "with the fuser": lambda of, **given: thunder.jit(of, executors=[fuser], **given),
    "thunder_fuser.jit": thunder_fuser.jit,
    "two Functions": lambda of: thunder_fuser.jit(of, thunderfx_disable_split_autograd=False),
}
by_each_jit = pytest.mark.parametrize("jit", JITS.values(), ids=[*JITS])


# --------------------------------------------------------------------------------------- threads


@by_each_jit
def test_threads_with_and_without_gradients_from_a_cold_start(jit: Jit) -> None:
    jitted, start, wrong = jit(_product), threading.Barrier(8), list[str]()

    def work(trains: bool) -> None:
        start.wait()
        with torch.set_grad_enabled(trains):
            for size in [2, 3, 4, 5] * 3:
                _check_mode(jitted, size, trains, wrong)

    threads = [threading.Thread(target=work, args=(at % 2 == 0,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for size in (2, 3, 4, 5):  # what was stored
        _check_mode(jitted, size, True, wrong)
    assert wrong == []


def _product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x) * w).sum()


def _check_mode(jitted: Any, size: int, trains: bool, wrong: list[str]) -> None:
    x, w = torch.randn(size), torch.ones(size, requires_grad=True)
    result = jitted(x, w)
    if result.requires_grad != trains:
        wrong.append(f"size {size}: the result's gradient is {result.requires_grad}")
    elif trains and not torch.allclose(torch.autograd.grad(result, w)[0], torch.tanh(x)):
        wrong.append(f"size {size}: the gradient's value")
    if torch.is_grad_enabled() != trains:
        wrong.append(f"size {size}: the grad mode after the call")


@by_each_jit
def test_threads_with_and_without_autocast(jit: Jit) -> None:
    jitted, start, wrong = jit(lambda x, w: x @ w), threading.Barrier(4), list[Any]()

    def work(is_on: bool) -> None:
        start.wait()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on), torch.no_grad():
            for size in [2, 3, 4] * 3:
                result = jitted(torch.ones(size, 2), torch.ones(2, 2))
                if (result.dtype is torch.bfloat16) != is_on:
                    wrong.append((size, is_on))

    threads = [threading.Thread(target=work, args=(at % 2 == 0,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@by_each_jit
def test_a_call_after_autocast(jit: Jit) -> None:
    jitted, w = jit(lambda x, w: x @ w), torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert jitted(w, w).dtype is torch.bfloat16
    for size in (2, 3):
        assert jitted(torch.ones(size, 2), w).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert jitted(torch.ones(4, 2), w).dtype is torch.bfloat16


# ------------------------------------------------------------------------------------- arguments


def _optional(x: torch.Tensor, mask: Any = None, dtype: Any = None, more: Any = ()) -> Any:
    x = x if mask is None else x * mask
    x = x if dtype is None else x.to(dtype)
    return x + len(more) + (isinstance(more, dict) and "bias" in more)


@by_each_jit
def test_none_types_lengths_and_keys_are_compared(jit: Jit) -> None:
    jitted, x, mask = jit(_optional), torch.ones(2), torch.zeros(2)
    calls: list[tuple[Any, ...]] = [
        (mask,), (None,), (mask, torch.float64), (mask, torch.float16), (mask, None),
        (None, None, [x]), (None, None, [x, x]), (None, None, (x, x)),
        (None, None, {"scale": x}), (None, None, {"bias": x}), (),
    ]  # fmt: skip
    for _ in range(2):
        for call in calls:
            assert torch.equal(jitted(x, *call), _optional(x, *call)), call
            assert jitted(x, *call).dtype == _optional(x, *call).dtype
    assert thunder.cache_misses(jitted) == len(calls)


# --------------------------------------------------------------------------------------- modules


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.register_buffer("kept", torch.ones(4))
        self.register_buffer("lost", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(x)) * self.scale + self.kept + self.lost


class Outer(nn.Module):
    def __init__(self, jit: Jit) -> None:
        super().__init__()
        self.net, self.head = jit(Net()), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(x))


@by_each_jit
def test_a_checkpoint_of_a_module_that_holds_a_jitted_one(jit: Jit) -> None:
    outer, plain, x = Outer(jit), Outer(lambda net: net), torch.randn(3, 4)
    outer(x).sum().backward()
    state = outer.state_dict()
    assert state.keys() == plain.state_dict().keys()
    plain.load_state_dict(state)
    for again in (Outer(jit), Outer(JITS["thunder.jit"])):
        again.load_state_dict(state)
        torch.testing.assert_close(again.eval()(x), plain.eval()(x))
    assert outer.net.state_dict().keys() == plain.net.state_dict().keys()


def test_checkpoints_with_the_names_that_thunder_wrote() -> None:
    jit = JITS["with the fuser"]
    outer, again, x = Outer(jit), Outer(jit), torch.randn(3, 4)
    for wrong in ("net..", "net._model."):
        again.load_state_dict(
            {name.replace("net.", wrong): value for name, value in outer.state_dict().items()}
        )
        assert torch.equal(again.eval()(x), outer.eval()(x))
    state = outer.state_dict()
    del state["net.layers.0.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*layers\.0\.weight"):
        again.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*other"):
        again.load_state_dict({**outer.state_dict(), "net.other": x})
    with pytest.raises(RuntimeError, match="net is jitted: load with assign=False"):
        again.load_state_dict(outer.state_dict(), assign=True)


def _deep(jitted: Any) -> Any:
    return deepcopy(jitted)


def _pickled(jitted: Any) -> Any:
    return pickle.loads(pickle.dumps(jitted))


def _saved(jitted: Any) -> Any:
    file = io.BytesIO()
    torch.save(jitted, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _inside(jitted: Any) -> Any:
    return deepcopy(nn.Sequential(jitted))[0]


@by_each_jit
@pytest.mark.parametrize("copied", [_deep, _pickled, _saved, _inside])
def test_copies_of_jitted_modules(jit: Jit, copied: Callable[[Any], Any]) -> None:
    jitted, x = jit(Net()), torch.randn(3, 4)
    jitted(x)
    jitted.eval()
    jitted.note = "mine"
    copy = copied(jitted)
    before = jitted(x)
    assert torch.equal(copy(x), before)
    assert (copy.note, copy.training) == ("mine", False)
    with torch.no_grad():
        copy.scale.zero_()
    assert torch.equal(jitted(x), before)
    assert torch.equal(copy(x), torch.full((3, 4), 2.0))
    of_copy, own = (thunder.compile_data(one) for one in (copy, jitted))
    assert of_copy.compile_options == own.compile_options
    assert [one.name for one in of_copy.executors_list[1:]] == [
        one.name for one in own.executors_list[1:]
    ]
    assert hasattr(copy._forward_fn, "fast_path") == hasattr(jitted._forward_fn, "fast_path")
    copy(x).sum().backward()
    assert copy.scale.grad is not None
    assert jitted.scale.grad is None


@by_each_jit
def test_an_averaged_model(jit: Jit) -> None:
    jitted, x = jit(Net()), torch.randn(3, 4)
    averaged = AveragedModel(jitted)
    averaged.update_parameters(jitted)
    torch.testing.assert_close(averaged.eval()(x), jitted.eval()(x))
    averaged.load_state_dict(averaged.state_dict())


def test_options_of_a_copy() -> None:
    jitted = thunder.jit(nn.Linear(2, 2), executors=[fuser], cache="no caching", fuser_fuel=3)
    data = thunder.compile_data(deepcopy(jitted))
    assert data.cache_option == thunder.compile_data(jitted).cache_option
    assert data.compile_options == {"fuser_fuel": 3}


def test_a_pickled_module_in_another_process(tmp_path: Any) -> None:
    torch.save(thunder_fuser.jit(nn.Linear(2, 2)), tmp_path / "net.pt")
    program = (
        f"import torch; net = torch.load({str(tmp_path / 'net.pt')!r}, weights_only=False)\n"
        "print(net(torch.ones(1, 2)).shape)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert result.stdout == "torch.Size([1, 2])\n", result.stderr


def test_a_module_with_transforms_is_not_copied() -> None:
    jitted = thunder.jit(nn.Linear(2, 2), transforms=[thunder.Transform()])
    for copied in (_deep, _pickled):
        with pytest.raises(CopyError, match="copy or pickle the original module, then jit"):
            copied(jitted)


# ------------------------------------------------------------------------------------- gradients


def _several(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor) -> Any:
    y = torch.tanh(x)
    with torch.no_grad():
        z = torch.sin(x)
    return (
        y, y.detach(), x.detach(), (x * 2).detach(), z, y.detach() * 3, m * 2, w * y.detach(),
        m > 0, torch.ones(3), (x.detach() + w).sum(), y.argmax(),
    )  # fmt: skip


def _measured(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor) -> Any:
    """What a training step says beside its loss: integers, bools and tensors of the same sizes."""
    hits = (x.argmax() == torch.arange(3)).float()
    return (
        x * w, hits.mean(), (x > 0).float() * 2, x.argmax().float(), torch.zeros_like(x),
        torch.ones_like(x) + 1, torch.full_like(x, 3.0), torch.empty_like(x).fill_(1.0),
        torch.zeros_like(x) + w, x[x.argmax()] * 2, x.new_zeros(3), torch.where(x > 0, w, m),
    )  # fmt: skip


@by_each_jit
@pytest.mark.parametrize(
    "function",
    [_several, _measured, lambda x, w, m: (x.detach() * m, (x * w).detach()),
     lambda x, w, m: (m * 2, x * w)],
)
def test_results_without_gradients(jit: Jit, function: Callable[..., Any]) -> None:
    jitted = jit(function)
    for _ in range(2):
        x, w = (torch.randn(3, requires_grad=True) for _ in range(2))
        m = torch.randn(3)
        results, expected = jitted(x, w, m), function(x, w, m)
        assert [one.requires_grad for one in results] == [one.requires_grad for one in expected]
        torch.testing.assert_close(results, expected)
        gradients = [_gradients(ones, x, w) for ones in (results, expected)]
        torch.testing.assert_close(*gradients)


def _gradients(results: Any, *inputs: torch.Tensor) -> Any:
    losses = [one.sum() for one in results if one.requires_grad]
    return torch.autograd.grad(sum(losses), inputs, allow_unused=True) if losses else ()


@by_each_jit
def test_second_derivatives_are_refused(jit: Jit) -> None:
    jitted, x = jit(lambda x: (x * x * x).sum()), torch.randn(3, requires_grad=True)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(jitted(x), x, create_graph=True)
        torch.testing.assert_close(gradient, 3 * x * x)
        with pytest.raises(RuntimeError, match="got the derivative of a gradient"):
            gradient.sum().backward()
    weight = torch.ones(3, requires_grad=True)  # the loss depends on x through another operand
    (gradient,) = torch.autograd.grad(jitted(x * weight), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="call the original function where second"):
        torch.autograd.grad(gradient.sum(), x)


# ------------------------------------------------------------------------------------ attributes


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps, self.last = 0, None
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.last = x * 2
        return self.inner(x) * self.steps


@by_each_jit
@pytest.mark.parametrize("is_inside", [False, True])
def test_attributes_that_forward_sets(jit: Jit, is_inside: bool) -> None:
    module, plain = Counts(), Counts()
    plain.load_state_dict(module.state_dict())
    jitted = jit(nn.Sequential(module) if is_inside else module)
    for at in range(3):
        x = torch.randn(3, 2)
        torch.testing.assert_close(jitted(x), plain(x))
        assert module.steps == at + 1
        assert torch.equal(module.last, x * 2)
    if not is_inside:
        assert jitted.steps == 3


class Sets(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log = ["called"]
        return x + 1


@by_each_jit
def test_attributes_that_are_not_kept_are_named(jit: Jit) -> None:
    with pytest.warns(LostWriteWarning, match=r"self\.log.*type list") as seen:
        jit(Sets())(torch.ones(2))
    assert [one.filename for one in seen if one.category is LostWriteWarning] == [__file__]


# ----------------------------------------------------------------------------------- the switch


def test_the_switch() -> None:
    jitted, x, mask = thunder.jit(_optional), torch.ones(2), torch.zeros(2)
    with thunder_fuser.options(thunder_fixes=False), warnings.catch_warnings():
        results = [jitted(x, mask), jitted(x, None), jitted(x, mask)]
    assert torch.equal(results[2], x)  # Thunder's error


def test_the_switch_in_the_environment() -> None:
    program = (
        "from thunder_fuser import fuser; from thunder.core.module import ThunderModule as Module\n"
        "from thunder.common import CompileData\n"
        "print('__deepcopy__' in vars(Module), 'is_grad_enabled' in vars(CompileData))"
    )
    for value, expected in (("0", "False False"), ("1", "True True")):
        assert python(program, THUNDER_FUSER_THUNDER_FIXES=value) == expected


# ---------------------------------------------------------------------------------- other methods


class _Generates(nn.Linear):
    def generate(self, x: torch.Tensor) -> torch.Tensor:
        return self(x) + 1

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@by_each_jit
def test_generate_says_that_torch_runs_it(jit: Jit) -> None:
    model, x = _Generates(3, 3), torch.randn(2, 3)
    jitted = jit(model)
    with pytest.warns(FallbackWarning, match="for the original model") as told:
        result = jitted.generate(x)
    assert told[0].filename == __file__
    torch.testing.assert_close(result, model.generate(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jitted.scaled(x)


class Walked(dict[int, Any]):
    def items(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


def test_modules_that_dynamo_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traced program makes a module: Thunder does not walk over all that Dynamo knows."""
    install_generation_tagging_init()

    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for one in self.all[:2]:
                x = one(x).relu()
            return x

    model, x = Sliced(), torch.randn(2, 4)
    known = GenerationTracker.generation_values
    for name in ("refs", "values"):
        monkeypatch.setattr(known, name, Walked(getattr(known, name)))
    torch.testing.assert_close(thunder.jit(model, executors=[fuser])(x), model(x))
