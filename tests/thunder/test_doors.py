# SPDX-License-Identifier: Apache-2.0
"""The ways to the fuser that Thunder and torch have: default executors, recipes, plugins, backends.

What a jitted function gives beside other executors is in test_beside_executors.py.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.core.recipe import Plugin, Recipe
from thunder.dynamo import ThunderCompiler, thunderfx
from thunder.extend import set_default_executors
from thunder.plugins import FP8, Profile, QuantizeInt4, ReduceOverhead
from thunder.recipes import BaseRecipe
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

import thunder_fuser
from thunder_fuser import fuser
from thunder_fuser.doors import recipes
from thunder_fuser.doors.backend_name import backend
from thunder_fuser.doors.recipes import FuserRecipe
from thunder_fuser.errors import (
    FallbackWarning,
    InPlaceError,
    InputError,
    OptionError,
    OptionWarning,
)
from thunder_fuser.explain import report
from thunder_fuser.explain.jitted import infos_of
from thunder_fuser.options import options
from thunder_fuser.thunder_patches.fixes import torch_func
from thunder_fuser.thunder_patches.torch_names import FIRST_LACKING
from thunder_fuser.versions import parse

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = ROOT / "pyproject.toml"
if_thunder_may_come_first = pytest.mark.skipif(
    parse(torch.__version__) >= FIRST_LACKING, reason="Thunder alone does not import on this torch"
)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


class Held(nn.Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def check(door: Callable[[nn.Module], Any]) -> Any:
    """The compiled net, after a forward and a backward that are eager's, with regions of ours."""
    model, eager, x = net(), net(), torch.randn(4, 8)
    compiled = door(model)
    fuser.last_claims = None
    result, expected = compiled(x), eager(x)
    torch.testing.assert_close(result, expected)
    result.square().sum().backward()
    expected.square().sum().backward()
    for parameter, wanted in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, wanted.grad)
    assert fuser.last_claims is not None and len(fuser.last_claims.regions) >= 2
    return compiled


@contextmanager
def default() -> Iterator[None]:
    before = list(thunder.get_default_executors())
    thunder.add_default_executor(fuser)
    try:
        yield
    finally:
        set_default_executors(before)


# ---------------------------------------------------------------- default executors and recipes


def test_a_default_executor() -> None:
    with default():
        check(thunder.jit)
        check(thunderfx)


@pytest.mark.parametrize("interpreter", ["thunder.jit", "thunder.fx"])
def test_the_recipe(interpreter: str) -> None:
    torch._dynamo.reset()
    recipe = FuserRecipe(interpreter=interpreter, fuser_strict=True)
    assert isinstance(recipe, BaseRecipe)
    compiled = check(lambda model: thunder.compile(model, recipe=recipe))
    if interpreter == "thunder.jit":
        assert thunder.compile_data(compiled).compile_options["fuser_strict"] is True
        assert len(report(compiled).fusions) >= 2


def test_the_recipe_by_its_name() -> None:
    check(lambda model: thunder.compile(model, recipe="thunder_fuser"))
    function = thunder.compile(lambda x: torch.tanh(x) * 2, recipe="thunder_fuser")
    torch.testing.assert_close(function(torch.ones(3)), torch.ones(3).tanh() * 2)


def test_without_nvfuser_it_is_the_recipe_of_every_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thunder's raises there: it hands None to thunder.jit, in place of nvFuser."""
    if thunder.nvfuser_executor is None:
        check(thunder.compile)
        assert type(Recipe.get_for_model(net())) is FuserRecipe
    monkeypatch.setitem(Recipe._registry, "", BaseRecipe)
    monkeypatch.setattr("thunder.recipes.base.get_executor", lambda name: None)
    with pytest.raises(ValueError, match="NoneType"):
        thunder.compile(net())


def test_an_unknown_option_of_a_recipe() -> None:
    with pytest.raises(OptionError, match="write fuser_strict"):
        thunder.compile(net(), recipe=FuserRecipe(fuser_strickt=True))(torch.ones(4, 8))


# ---------------------------------------------------------------------------- Thunder's plugins


@pytest.mark.parametrize(
    ("plugin", "need"),
    [("fp8", "transformer_engine"), ("quantize-int4", "bitsandbytes"),
     ("reduce-overhead", "a CUDA device")],
)  # fmt: skip
def test_a_plugin_without_what_it_needs(
    plugin: str, need: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError, match=f"plugin .*: expected {need}, got none here"):
        thunder.compile(net(), recipe="thunder_fuser", plugins=plugin)


def test_a_plugin_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    plugins = (FP8(), QuantizeInt4(), ReduceOverhead(), Profile("x"), Plugin())
    assert [recipes.missing_of(plugin) for plugin in plugins] == [""] * 5


def test_a_plugin_of_the_user() -> None:
    """Its lookasides, transforms and executors stand beside the fuser."""

    class Doubled(thunder.Transform):
        seen = 0

        def transform_traces_pre_prologue(self, prologue, trace, epilogue, **about):  # type: ignore[no-untyped-def]
            Doubled.seen += 1
            return prologue, trace, epilogue

    class Ours(Plugin):
        def setup_transforms(self) -> list[Any]:
            return [Doubled()]

    check(lambda model: thunder.compile(model, recipe="thunder_fuser", plugins=Ours()))
    assert Doubled.seen == 1


# ---------------------------------------------------------------------- torch.compile's backend


def test_the_backend_of_torch_compile() -> None:
    torch._dynamo.reset()
    check(lambda model: torch.compile(model, backend=backend, options={"fuser_strict": True}))
    with pytest.raises(BackendCompilerFailed, match=r"OptionError.*fuser_cuda_graphs=True"):
        torch.compile(net(), backend=backend, mode="reduce-overhead")(torch.ones(4, 8))


def test_the_backend_of_a_module_compiled_in_place() -> None:
    torch._dynamo.reset()

    def compiled(model: nn.Module) -> nn.Module:
        held = Held(model)  # Dynamo leaves a bare Sequential to Python
        held.compile(backend=ThunderCompiler(executors=[fuser]))
        return held

    found = report(check(compiled))
    assert found.name == "Held"
    assert [each.state for each in found.fusions].count("fused") == 2


def test_what_dynamo_splits_and_what_changes_its_shape() -> None:
    torch._dynamo.reset()

    def signed(x: Tensor) -> Tensor:
        return torch.tanh(x) * 2 if x.sum().item() > 0 else torch.tanh(x) - 1

    compiled = torch.compile(signed, backend=backend)
    for rows in (2, 3, 5):
        for x in (torch.ones(rows, 4), -torch.ones(rows, 4)):
            torch.testing.assert_close(compiled(x), signed(x))


def _in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="thunder_fuser")
    return model


@pytest.mark.parametrize(
    "door",
    [lambda model: torch.compile(model, backend=backend), lambda model: _in_place(Held(model))],
)
def test_a_report_of_the_backend_by_its_name(door: Callable[[nn.Module], Any]) -> None:
    """Each function has its own graphs, and nothing keeps those that Dynamo has forgotten.

    Of two models of one class the second runs the first one's graphs: Dynamo finds the same code.
    """
    torch._dynamo.reset()
    first, second = door(net()), door(nn.LayerNorm(8))
    with pytest.raises(InputError, match="expected a function that was called"):
        report(first)
    for compiled in (first, second):
        compiled(torch.randn(4, 8))
        assert report(compiled).fusions[0].state == "fused"
    kept = weakref.ref(infos_of(first)[0])
    assert infos_of(second) and kept() not in infos_of(second)
    del first, second, compiled
    torch._dynamo.reset()
    gc.collect()
    assert kept() is None


def test_a_function_that_runs_the_graphs_of_an_equal_one() -> None:
    """Its error does not say that it was not called, and what it names to write has a report."""
    torch._dynamo.reset()
    models = nn.LayerNorm(8), nn.LayerNorm(8)
    first, second = (torch.compile(model, backend="thunder_fuser") for model in models)
    for compiled in (first, second):
        compiled(torch.randn(4, 8))
    assert report(first).fusions
    with pytest.raises(InputError, match=r"graphs of an equal one.*backend=ThunderCompiler"):
        report(second)
    third = torch.compile(models[1], backend=ThunderCompiler(executors=[fuser]))
    third(torch.randn(4, 8))
    assert report(third).fusions


TRANSFORMS: dict[str, Callable[[Tensor], Any]] = {
    "grad": lambda x: torch.func.grad(lambda y: (y * y * x).sum())(x).tanh(),
    "vmap": lambda x: torch.func.vmap(torch.sin)(x) * x,
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1] * x,
    "hessian": lambda x: torch.func.hessian(lambda y: (y**3).sum())(x) * x,
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("by_name", [True, False], ids=["backend", "thunderfx"])
def test_torch_runs_graphs_with_torch_func(name: str, by_name: bool) -> None:
    """And nothing of torch.func stays open behind them."""
    torch._dynamo.reset()
    function = TRANSFORMS[name]
    x, y = (torch.arange(1.0, 4.0, requires_grad=True) for _ in range(2))
    compiled = (
        torch.compile(function, backend="thunder_fuser") if by_name
        else thunderfx(function, executors=[fuser])
    )  # fmt: skip
    result, expected = compiled(x), function(y)
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert torch._C._functorch.get_interpreter_stack() is None
    assert torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is None


def normed(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    with torch.no_grad():
        s = F.normalize(w * u, dim=0, out=u).clone()
    return x * s


def nested(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    with torch.no_grad():
        a = torch.sinc(w) * x
        with torch.enable_grad():
            b = torch.sinc(w * x) * 2
        c = torch.sinc(b) + F.normalize(u, dim=0, out=u)
    return b * c + a * x


@pytest.mark.parametrize("function", [normed, nested])
def test_parts_of_a_graph_leave_gradients_on(function: Callable[..., Tensor]) -> None:
    """Inductor, and Thunder, run parts that switch them off."""
    torch._dynamo.reset()
    compiled = thunderfx(function, executors=[fuser])
    x, w = (torch.rand(8, requires_grad=True) for _ in range(2))
    for call in range(3):
        u = torch.rand(8)
        result, expected = compiled(x, w, u.clone()), function(x, w, u.clone())
        assert torch.is_grad_enabled(), call
        torch.testing.assert_close(result, expected)
        got, right = (
            torch.autograd.grad(y.sum(), (x, w), materialize_grads=True)
            for y in (result, expected)
        )
        torch.testing.assert_close(got, right)
    with torch.no_grad():
        compiled(x, w, torch.rand(8))
        assert not torch.is_grad_enabled()


def test_spectral_norm() -> None:
    torch._dynamo.reset()
    mine, its = (nn.utils.spectral_norm(net()[0]) for _ in range(2))
    its.load_state_dict(mine.state_dict())
    compiled = thunderfx(mine, executors=[fuser])
    for _ in range(3):
        x = torch.randn(4, 8)
        got, expected = compiled(x), its(x)
        assert torch.is_grad_enabled()
        torch.testing.assert_close(got, expected)
        got.sum().backward()
        expected.sum().backward()
    torch.testing.assert_close(mine.weight_orig.grad, its.weight_orig.grad)


def _stepped(function: Callable[..., Any], x: Any, *others: Any) -> list[Any]:
    """The results for leaves, and the gradient of the first."""
    x = x.clone().requires_grad_()
    results = function(x, *others)
    (results[0].square() * torch.arange(4)).sum().backward()
    return [*results, x.grad]


def test_what_inductor_reads_has_the_strides_of_eager_torch() -> None:
    """isfinite is Inductor's, and its kernel was compiled for a view of a row-major softmax."""
    torch._dynamo.reset()

    def checked(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.softmax(x.transpose(1, 2), -1).transpose(1, 2)
        return y * 2, torch.isfinite(y)

    x = torch.randn(2, 6, 4)
    got = _stepped(thunderfx(checked, executors=[fuser]), x)
    torch.testing.assert_close(got, _stepped(checked, x))


def test_strides_of_what_is_expanded() -> None:
    """As an argument of Inductor's part, compiled for strides with zeros."""
    taken = []
    laid_out = torch_func._with_strides(lambda *args: taken.extend(args), [(1, 0, 4), None, (2, 1)])
    x, y = torch.randn(4, 1, 3).expand(4, 5, 3).contiguous(), torch.randn(2, 2)
    laid_out(x, 7, y)
    assert taken[0].stride() == (1, 0, 4) and torch.equal(taken[0], x)
    assert taken[1] == 7 and taken[2] is y


@pytest.mark.parametrize("strict", [False, True])
def test_a_write_to_what_the_program_has_computed(strict: bool) -> None:
    """Behind a graph break it is an argument of the next graph, which torch runs then."""
    torch._dynamo.reset()

    def masked(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor]:
        y = torch.sin(x)
        torch._dynamo.graph_break()
        y[~mask] = 0
        return (y * 2,)

    x, mask = torch.randn(3, 4), torch.tensor([True, False, True])
    compiled = thunderfx(masked, executors=[fuser])
    with options(strict=strict):
        if strict:
            with pytest.raises(InPlaceError, match="a write in place to an argument"):
                compiled(x.requires_grad_(), mask)
            return
        with pytest.warns(FallbackWarning, match="Torch runs a part of a graph: a write in place"):
            got = _stepped(compiled, x, mask)
        torch.testing.assert_close(got, _stepped(masked, x, mask))
        torch.testing.assert_close(_stepped(compiled, x, mask), got)


def test_explain_says_how_to_get_a_report() -> None:
    compiled = torch.compile(net(), backend="eager")
    with pytest.raises(InputError, match=r'got OptimizedModule.*write backend="thunder_fuser"'):
        report(compiled)


# ------------------------------------------------------------------------ what an import registers

RECIPE = """
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
x = torch.randn(2, 8)
torch.testing.assert_close(thunder.compile(net, recipe="thunder_fuser")(x), net(x))
"""
BACKEND = """
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
x = torch.randn(2, 8)
torch.testing.assert_close(torch.compile(net, backend="thunder_fuser")(x), net(x))
assert "thunder_fuser" in torch._dynamo.list_backends()
assert sys.modules["thunder_fuser.executors.fuser"].fuser.last_claims.regions
"""
LOOK = """
import importlib.util, sys, thunder_fuser, thunder, torch
importlib.util.find_spec("thunder.recipes")
import thunder.recipes
assert "thunder_fuser" in thunder.recipes.get_recipes()
"""
OF_THE_USER = """
import thunder, thunder.recipes, torch
from thunder.core.recipe import Recipe
class Mine(thunder.recipes.BaseRecipe): pass
Recipe.register("")(Mine)
import thunder_fuser
"""
PROGRAMS = {
    "the recipe": ("import sys, thunder_fuser, thunder, torch", RECIPE + BACKEND),
    "a look at a module": (LOOK, RECIPE + BACKEND),
    "behind Thunder": (OF_THE_USER, RECIPE + "assert Recipe._registry[''] is Mine"),
    "no import": ("import sys, torch", BACKEND + "import thunder, thunder_fuser" + RECIPE),
}


@pytest.mark.parametrize(
    ("program", "installed"),
    [("a look at a module", False), ("the recipe", True), ("no import", True),
     pytest.param("behind Thunder", False, marks=if_thunder_may_come_first)],
)  # fmt: skip
def test_names_are_registered(program: str, installed: bool, tmp_path: Path) -> None:
    """installed: as a wheel is, with the entry point of pyproject.toml.

    A look at a module does not lose its door; a default recipe that the user registered stays.
    """
    folder = tmp_path / "thunder_fuser-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: thunder-fuser\nVersion: 9\n")
    if installed:
        head = "[project.entry-points."
        section = PYPROJECT.read_text("utf-8").partition(head)[2].partition("\n[")[0]
        (folder / "entry_points.txt").write_text("[" + section.replace('"', ""))
    head, body = PROGRAMS[program]
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:thunder_fuser", "-c", f"{head}\n{body}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


# ------------------------------------------------------------------------ torch.compile's words

ADVICE = {
    "mode": ("max-autotune", "write fuser_cuda_graphs=True"),
    "dynamic": (True, "leave it out: each new shape"),
    "fullgraph": (True, "leave it out: the whole function"),
    "backend": ("inductor", 'torch.compile\\(f, backend="thunder_fuser"\\)'),
    "options": ({"fuser_strict": True}, "write each option as a keyword"),
    "disable": (True, "call the function itself"),
}


@pytest.mark.parametrize("name", ADVICE)
def test_a_word_of_torch_compile(name: str) -> None:
    value, advice = ADVICE[name]
    expected = f"thunder_fuser.jit: expected keywords of thunder.jit, got {name}=.*{advice}"
    with pytest.raises(OptionError, match=expected):
        thunder_fuser.jit(net(), **{name: value})
    with pytest.raises(OptionError, match=expected):
        thunder_fuser.jit(**{name: value})


def test_a_word_of_torch_compile_in_thunder_jit(monkeypatch: pytest.MonkeyPatch) -> None:
    """thunder.jit takes any keyword; a warning says so once."""
    monkeypatch.setattr("thunder_fuser.source.jit_options.first_time", lambda key: True)
    jitted = thunder.jit(net(), executors=[fuser], mode="max-autotune-no-cudagraphs")
    advice = r"thunder.jit\(mode=...\).*leave it out: schedules are not searched$"
    with pytest.warns(OptionWarning, match=advice):
        jitted(torch.ones(4, 8))


def test_thunderfx_takes_the_words_that_dynamo_knows() -> None:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", OptionWarning)
        check(lambda model: thunderfx(model, executors=[fuser], dynamic=False, fullgraph=True))


def test_jit_is_a_decorator_with_and_without_arguments() -> None:
    @thunder_fuser.jit(fuser_strict=True, executors=[fuser])
    def strict(x: Tensor) -> Tensor:
        """Twice the sine."""
        return torch.sin(x) * 2

    @thunder_fuser.jit
    def plain(x: Tensor) -> Tensor:
        return torch.sin(x) * 2

    x = torch.randn(5)
    assert torch.equal(strict(x), plain(x))
    assert thunder.compile_data(strict).compile_options["fuser_strict"] is True
    assert (strict.__name__, strict.__doc__) == ("strict", "Twice the sine.")
    for executors in (["torch"], fuser, "thunder_fuser"):
        with pytest.raises(OptionError, match="expected a list with the fuser"):
            thunder_fuser.jit(executors=executors)
