# SPDX-License-Identifier: Apache-2.0
"""Plans in the store: the next process plans nothing that this one has planned."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.stores import warned
from helpers.strategies import Case, cases
from hypothesis import HealthCheck, Phase, given, settings

from thunder_fuser import FusionCache, compiler
from thunder_fuser.base.dump import Dump
from thunder_fuser.base.stages import timed
from thunder_fuser.cache import computed
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import CompileError
from thunder_fuser.explain.jitted import jit
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.options import compile_options, options
from thunder_fuser.store.store import current_store
from thunder_fuser.target import CPU, H200, Target

PLANNING = {"specialise", "segment", "schedule", "lower", "emit"}
from_store = computed.computed
SLOW = settings(
    deadline=None, derandomize=True, phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new store, and plans in it, which other tests compute anew."""
    monkeypatch.setattr(compiler, "computed", from_store)
    with options(cache_dir=str(tmp_path / "store")):
        yield tmp_path / "store"


def stages(run: Callable[[], object]) -> dict[str, int]:
    """The entries of each stage of a compilation in a cache that has no definitions."""
    with FusionCache(), timed() as spent:
        run()
    return {name: at.calls for name, at in spent.items()}


def softmax(x: torch.Tensor) -> FusionDefinition:
    with FusionDefinition() as fd:
        e = fd.ops.exp(fd.from_pytorch(x))
        fd.add_output(fd.ops.truediv(e, fd.ops.broadcast(fd.ops.sum(e, [1]), [False, True])))
    return fd


def norm(columns: int = 33, **chosen: Any) -> None:
    """Runs a softmax of [4, columns]."""
    x = torch.linspace(-3, 3, 4 * columns).view(4, columns)
    (result,) = softmax(x).execute([x], **chosen)
    torch.testing.assert_close(result, x.softmax(1))


def plans() -> int:
    """The number of plans in the store."""
    store = current_store()
    assert store is not None
    kinds = [stored.entry.fields["kind"] for stored in store.entries() if stored.entry]
    return kinds.count("plan")


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_what_is_stored_is_not_planned_again(target: str) -> None:
    assert stages(lambda: norm(target=target)).keys() >= PLANNING
    again = stages(lambda: norm(target=target))
    assert not again.keys() & PLANNING and again["plan"] == 1
    assert plans() == 1


def test_a_jitted_function_plans_ahead_from_the_store() -> None:
    def step() -> None:
        x = torch.randn(4, 33, requires_grad=True)
        y = jit(lambda x: torch.softmax(x * 2, 1).exp(), strict=True)(x)
        y.sum().backward()
        want = torch.autograd.grad((x * 2).softmax(1).exp().sum(), x)
        torch.testing.assert_close((y, x.grad), ((x * 2).softmax(1).exp(), *want))

    assert stages(step).keys() >= PLANNING
    assert not stages(step).keys() & PLANNING


PROCESS = """
import json, torch
from thunder_fuser import FusionDefinition
from thunder_fuser.base.stages import timed

x = torch.linspace(-3, 3, 4 * 65).view(5, 52)
with FusionDefinition() as fd:
    t = fd.from_pytorch(x)
    e = fd.ops.exp(t)
    total = fd.ops.broadcast(fd.ops.sum(e, [1]), [False, True])
    fd.add_output(fd.ops.truediv(e, total))
    fd.add_output(fd.ops.permute(fd.ops.sin(t), [1, 0]))
with timed() as spent:
    results = fd.execute([x])
answer = [sorted(spent), [r.tolist() for r in results]]
"""


def test_another_process_with_another_order_of_sets(root: Path) -> None:
    here: dict[str, Any] = {}
    with FusionCache():
        exec(PROCESS, here)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROCESS + "print(json.dumps(answer))"],
        capture_output=True, text=True, check=True, timeout=300,
        env={**os.environ, "PYTHONHASHSEED": "7", "THUNDER_FUSER_CACHE_DIR": str(root)},
    )  # fmt: skip
    stages, results = json.loads(done.stdout)
    assert {*here["answer"][0]} >= PLANNING and not {*stages} & PLANNING
    assert results == here["answer"][1]


@pytest.mark.parametrize("target", [CPU, H200], ids=["cpu", "h200"])
@settings(SLOW, max_examples=25)
@given(case=cases(most_ops=25))
def test_a_copy_of_a_plan_says_the_same(target: Target, case: Case) -> None:
    keys, chosen = input_keys(case.fusion, case.inputs), compile_options()
    plan = compiler.plan_kernels(case.fusion, keys, target, chosen, Dump(""))
    copy = pickle.loads(pickle.dumps(plan))
    assert (copy.segmented, copy.sources) == plan_of(plan)
    assert str(copy.segmented) == str(plan.segmented)
    assert copy.segmented.strides == plan.segmented.strides
    for ours, theirs in zip(copy.segmented.segments, plan.segmented.segments, strict=True):
        assert ours.part.demand.operands == theirs.part.demand.operands  # interned expressions


def plan_of(plan: compiler.Planned) -> tuple[object, ...]:
    return plan.segmented, plan.sources


@pytest.mark.parametrize(("of_call", "of_process"), [
    ({"columns": 34}, {}), ({"target": "emulator"}, {}), ({}, {"repeatable": True}),
    ({}, {"max_registers_bytes": 64}),
], ids=str)  # fmt: skip
def test_other_arguments_have_another_plan(
    of_call: dict[str, Any], of_process: dict[str, Any]
) -> None:
    stages(norm)
    with options(**of_process):
        assert stages(lambda: norm(**of_call)).keys() >= PLANNING
    assert plans() == 2


def test_another_version_has_another_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    stages(norm)
    monkeypatch.setattr(computed, "_VERSION", "another")
    assert stages(norm).keys() >= PLANNING
    assert plans() == 2


def test_the_version_has_every_file(tmp_path: Path) -> None:
    (tmp_path / "a" / "prelude").mkdir(parents=True)
    versions = set()
    for name, text in (("b.py", "1"), ("a/prelude/c.h", "1"), ("a/prelude/c.h", "2"), ("d.py", "")):
        (tmp_path / name).write_text(text)
        versions.add(computed._version(tmp_path))
    (tmp_path / "b.pyc").write_text("compiled by Python")
    versions.add(computed._version(tmp_path))
    assert len(versions) == 4


@pytest.mark.parametrize("chosen", [{"dump": "here"}, {"cache": "off"}], ids=str)
def test_what_must_be_planned_is_not_stored(
    chosen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with options(**chosen):
        for _ in range(2):
            assert stages(norm).keys() >= PLANNING
    assert plans() == 0


def test_given_schedules_are_not_stored() -> None:
    x = torch.ones(4, 33)
    (own,) = softmax(x).schedules([x])
    stages(lambda: norm(schedules={0: str(own)}))
    assert plans() == 0


def test_a_store_that_is_only_read() -> None:
    with options(cache="ro"):
        assert stages(norm).keys() >= PLANNING and plans() == 0
    stages(norm)
    with options(cache="ro"):
        assert not stages(norm).keys() & PLANNING


def test_a_plan_that_others_can_read_is_refused(root: Path) -> None:
    """It is code, as a library is."""
    stages(norm)
    store = current_store()
    assert store is not None
    for stored in store.entries():
        assert stored.entry is not None
        if stored.entry.fields["kind"] == "plan":
            (root / stored.file.name).chmod(0o644)
    with warned() as messages:
        assert stages(norm).keys() >= PLANNING
    assert len(messages) == 1 and "0o644" in messages[0]


@pytest.mark.parametrize(("module", "name"), [
    ("os", "system"), ("thunder_fuser.store.store", "os.system"),
    ("thunder_fuser.compiler", "write"), ("builtins", "eval"),
])  # fmt: skip
def test_a_pickle_runs_nothing_but_this_package_s_types(module: str, name: str) -> None:
    """The function is named, and called with 'touch here'."""
    texts = b"".join(pickle.dumps(word, 4)[2:-1] for word in (module, name))
    call = b"\x80\x04" + texts + b"\x93" + pickle.dumps(("touch here",), 4)[2:-1] + b"R."
    with pytest.raises(pickle.UnpicklingError, match="is no class of this package"):
        computed._Unpickler(io.BytesIO(call)).load()


@pytest.mark.parametrize("content", [
    b"cos\nsystem\n(S'false'\ntR.", b"", b"cthunder_fuser.compiler\nGone\n.", b"cgone.gone\ng\n.",
    pickle.dumps([7])[:-3],
], ids=["a call", "empty", "a type that is gone", "a module that is gone", "cut"])  # fmt: skip
def test_a_pickle_from_elsewhere_is_a_miss(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(pickle, "dumps", lambda *_: content)
        assert from_store("seven", lambda: 7) == 7
    assert plans() == 1
    assert from_store("seven", lambda: 8) == 8
    assert from_store("seven", lambda: 9) == 8


def test_what_cannot_be_pickled_is_computed_each_time(caplog: pytest.LogCaptureFixture) -> None:
    with options(log="cache"):
        assert from_store("a generator", lambda: (at for at in [3])).send(None) == 3
        assert from_store("a generator", lambda: (at for at in [4])).send(None) == 4
    assert "a plan is not kept: cannot pickle 'generator' object" in caplog.text
    assert plans() == 0


def test_a_rejected_kernel_of_a_stored_plan_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def rejected(_: object, source: KernelSource, *rest: object) -> None:
        error = CompileError("the kernel", expected="C++", got="something else")
        error.text = source.text
        raise error

    stages(norm)
    monkeypatch.setattr(compiler, "launcher_for", rejected)
    with pytest.raises(CompileError) as raised, FusionCache():
        norm()
    assert raised.value.folder is not None
    assert "exp" in (raised.value.folder / "4_kernel_0.cpp").read_text()
    shutil.rmtree(raised.value.folder)


def test_an_error_is_not_stored() -> None:
    def wrong() -> int:
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            from_store("wrong", wrong)
    assert from_store("wrong", lambda: 7) == 7
    assert from_store("wrong", wrong) == 7
