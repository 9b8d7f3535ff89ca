# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks memory`: its measure, its floor, Thunder's own policy, its bounds."""

from __future__ import annotations

import json
import weakref
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.__main__ import main
from benchmarks.models import MODELS, make_model
from benchmarks.saved_memory.floor import floor
from benchmarks.saved_memory.measure import Kept, Part, kept_by
from benchmarks.saved_memory.pairwise import jit_pairwise
from benchmarks.saved_memory.rows import Row
from benchmarks.saved_memory.run import SIZES
from thunder_fuser.demo.accuracy import accuracy
from thunder_fuser.demo.blocks import SMALL, make_input
from thunder_fuser.explain import memory
from thunder_fuser.explain.jitted import jit, recomputation_of
from thunder_fuser.rematerialization.forward import Forward, ForwardValue, Operation


def part(size: int, dtype: torch.dtype = torch.bfloat16) -> Part:
    return Part(size * dtype.itemsize, dtype, (size,))


def row(floor: int = 10, **kept: tuple[Part, ...]) -> Row:
    return Row("model", 1, {name: Kept(parts) for name, parts in kept.items()}, {"linear": floor})


def whys(row: Row) -> list[tuple[bool, str]]:
    return [(one.met, why) for one, why in row.bounds()]


def test_what_autograd_keeps_of_an_eager_function() -> None:
    """tanh keeps its result, the product both operands; x and the weight live anyway."""
    model = nn.Linear(8, 4, bias=False)
    x = torch.randn(2, 8, requires_grad=True)
    kept = kept_by(lambda x: torch.tanh(model(x)[:1]) * model(x), model, x)
    assert sorted(map(str, kept.parts)) == ["float32[1, 4]", "float32[2, 4]"]
    assert kept.bytes == 4 * (4 + 8)
    whole = kept_by(lambda x: torch.exp(x * 2)[:1].square(), model, x)
    assert [one.bytes for one in whole.parts] == [64]  # the view's storage, once


def test_measuring_leaves_nothing_behind() -> None:
    """exp keeps its own result, which the hooks must not bind to its graph."""
    results: list[weakref.ref[torch.Tensor]] = []

    def call(x: torch.Tensor) -> torch.Tensor:
        result = torch.exp(x)
        results.append(weakref.ref(result))
        return result.sum()

    assert kept_by(call, nn.Linear(1, 1), torch.randn(8, requires_grad=True)).bytes == 32
    assert results[0]() is None


def test_the_floor_is_what_must_be_kept_by_its_makers() -> None:
    """u = linear(x); v = wide(u), read in the backward: u is kept, with fewer bytes.

    n = narrow(m) is kept in place of what it is made of: of linear too.
    """
    forward = Forward(
        (
            Operation("linear", ("x",), (ForwardValue("u", 8),), refusal="torch runs linear"),
            Operation("cast", ("u",), (ForwardValue("v", 16, needed=True),), operations=4),
            Operation("exp", ("v",), (ForwardValue("w", 16, needed=True),), operations=32),
            Operation("sum", ("w",), (ForwardValue("s", 4, needed=True),), refusal="a reduction"),
            Operation("linear", ("w",), (ForwardValue("m", 8),), refusal="torch runs linear"),
            Operation("gt", ("m", "v"), (ForwardValue("n", 2, needed=True),), operations=4),
        ),
        {"x": 8},
    )
    assert floor(forward) == {"linear": 10, "sum": 4}


def test_bounds_are_met_or_say_why() -> None:
    good = row(time=(part(9),), memory=(part(7),), thunder=(part(9),), compile=(part(10),))
    assert whys(good) == [(True, ""), (True, "")]
    wide = part(2, torch.float32), part(8)
    same = row(time=wide, memory=wide, thunder=wide, compile=(part(2), part(8)), floor=19)
    assert whys(same) == [
        (False, "2 numbers of float32 (0.0 KiB) are kept by compile in bfloat16 (0.0 KiB)"),
        (False, "what is never recomputed is 0.0 KiB, 0.950"),
    ]
    more = row(time=(part(3), part(8)), memory=wide, thunder=wide, compile=(part(2), part(8)))
    assert whys(more) == [(False, ""), (False, "")]


@pytest.mark.parametrize("name", MODELS)
def test_policies_beside_thunders_own(name: str) -> None:
    """Bytes measured are those planned; `time` keeps no more than Thunder's own policy."""
    model = make_model(name, 1, SMALL, torch.bfloat16)
    x, _ = make_input(SMALL, torch.bfloat16, "cpu")
    x.requires_grad_()
    kept = {}
    for policy in ("time", "memory"):
        jitted = jit(model, strict=True, rematerialization=policy)
        kept[policy] = kept_by(jitted, model, x).bytes
        assert kept[policy] == recomputation_of(jitted).plan.bytes
    thunders = kept_by(jit_pairwise(model), model, x).bytes
    assert sum(floor(recomputation_of(jitted).forward).values()) <= kept["memory"] <= 0.8 * thunders
    assert kept["time"] <= thunders


def test_thunders_own_policy_gives_the_gradients() -> None:
    model = make_model("gemma", 2, SMALL, torch.float32)
    samples = [make_input(SMALL, torch.float32, "cpu", seed) for seed in range(4)]
    assert [one for one in accuracy(model, jit_pairwise(model), samples) if not one.passes] == []


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What inductor's partition keeps is measured without compiling C++."""
    partition = partial(torch.compile, backend="aot_eager_decomp_partition")
    monkeypatch.setattr(torch, "compile", partition)
    file, picture = tmp_path / "memory.json", tmp_path / "memory.png"
    drawn = ["--plot", str(picture)] if find_spec("matplotlib") else []
    words = ["memory", "--models", "mlp", "--layers", "1", "--json", str(file)]
    assert main([*words, *drawn]) == 0
    assert picture.exists() == bool(drawn)
    (found,) = json.loads(file.read_text())["figures"]["rows"]
    hidden = 2 * SIZES.batch * SIZES.sequence * SIZES.hidden
    assert found["bytes"]["compile"] == found["bytes"]["time"] == 2 * hidden
    assert found["bytes"]["memory"] == 0 and found["floor"] == {}
    assert [one["met"] for one in found["bounds"]] == [True, True]
    assert "memory of mlp, 1 layers: 0.000, at most 0.8" in capsys.readouterr().out


def test_without_matplotlib_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "find_spec", lambda name: None)
    assert main(["memory", "--plot", "memory.png"]) == 1
    assert "pip install 'thunder-fuser[plot]'" in capsys.readouterr().err
