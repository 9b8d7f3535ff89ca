# SPDX-License-Identifier: Apache-2.0
"""The functions of thunder_fuser.explain: what they take, what they return, and the states."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.dynamo import ThunderCompiler, thunderfx
from thunder.transforms.cudagraph import CUDAGraphRunner, CUDAGraphTransform
from torch import nn

from thunder_fuser import explain, fuser
from thunder_fuser.base.stages import timed
from thunder_fuser.errors import FallbackWarning, InputError
from thunder_fuser.explain import kernels, profile, report, saved, timeline, why
from thunder_fuser.explain.jitted import Jitted, jit
from thunder_fuser.explain.reports import FusionReport


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w) * 2


def called(function: Callable[..., Any], gradients: bool = False, **given: Any) -> Jitted:
    jitted = jit(function, **given)
    jitted(*(torch.randn(8, 8, requires_grad=gradients) for _ in range(2)))
    return jitted


def states(jitted: Any) -> list[tuple[str, str, str]]:
    return [(one.direction, one.state, one.reason) for one in report(jitted).fusions]


# ------------------------------------------------------------------------------------ functions


def test_no_submodule_shadows_a_function() -> None:
    for module in pkgutil.iter_modules(explain.__path__):
        importlib.import_module(f"{explain.__name__}.{module.name}")
    assert {*explain.__all__} <= {*dir(explain)}
    for name in explain.__all__:
        assert inspect.isfunction(getattr(explain, name)), name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        explain.nonsense


def test_importing_the_package_imports_no_report() -> None:
    script = (
        "import sys, thunder_fuser.explain\n"
        "print([one for one in sys.modules if one.startswith('thunder_fuser.explain.')])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_results_print_and_become_plain_data() -> None:
    jitted = called(product, gradients=True, rematerialization="memory")
    x = torch.randn(8, 8)
    results = [report(jitted), kernels(jitted), saved(jitted), timeline(jitted), why(jitted),
               kernels(jitted)[0], report(jitted).fusions[0], profile(jitted, x, x, rounds=1)]
    for one in results:
        assert len(repr(one)) < 80 and "\n" not in repr(one)
        assert len(str(one)) > len(repr(one))
        assert one._repr_html_().startswith("<pre>")
        assert json.loads(json.dumps(one.to_dict())) == one.to_dict()


def test_what_a_dictionary_of_a_report_holds() -> None:
    with timed():
        jitted = called(product)
        found = report(jitted, with_timeline=True).to_dict()
    assert list(found) == ["name", "fusions", "unfused", "saved", "recomputed", "timeline",
                           "trace", "stages", "graphs", "products"]
    (fusion,) = found["fusions"]
    assert list(fusion) == ["name", "direction", "state", "reason", "where", "ops", "schedulers",
                            "segments", "kernels", "bytes_in", "bytes_out", "definition", "plan",
                            "schedules"]
    (kernel,) = fusion["kernels"]
    assert fusion["segments"] == [{"scheduler": "pointwise", "kernels": [kernel["name"]]}]
    assert (fusion["bytes_in"], fusion["bytes_out"]) == (256, 256)
    assert kernel["estimated_us"] > 0 and kernel["measured_us"] is None
    assert "fd.ops.tanh" in fusion["definition"] and "segment 0 pointwise" in fusion["plan"]
    assert [op["text"].split("(")[0] for op in fusion["ops"]] == ["t1 = tanh", "t2 = mul"]
    assert [one["call"] for one in found["timeline"]] == ["matmul", "thunderFusion0"]
    assert "thunderFusion0" in found["trace"] and found["stages"]["claim"] > 0
    assert report(jitted).to_dict()["stages"] == {}


def test_a_kernel_without_and_with_what_it_calls() -> None:
    (kernel,) = kernels(called(product))
    assert kernel.source.startswith("// pointwise\n")
    assert len(kernel.source.splitlines()) < 40 < len(kernel.full_source.splitlines())
    assert kernel.full_source.endswith(kernel.source)
    assert str(kernel) == kernel.source
    (cuda,) = kernels(called(product, emulate=True))
    assert "__global__" in cuda.source and "stv" in cuda.full_source.removesuffix(cuda.source)


# --------------------------------------------------------------------------------------- states


def test_fused() -> None:
    assert states(called(product)) == [("forward", "fused", "")]


def test_a_report_has_no_empty_table() -> None:
    assert "with torch" in str(report(called(product)))
    assert "with torch" not in str(report(called(lambda x, w: torch.tanh(x + w))))
    assert str(report(called(torch.matmul))).startswith("  no fusion\n")


def test_a_backward_that_was_not_called_is_no_view() -> None:
    jitted = jit(lambda x: torch.tanh(torch.sin(x)))
    result = jitted(torch.randn(5, requires_grad=True))
    waits = "it is compiled at its first call"
    assert states(jitted) == [("forward", "fused", ""), ("backward", "not called yet", waits)]
    result.sum().backward()
    assert states(jitted) == [("forward", "fused", ""), ("backward", "fused", "")]


def test_the_report_is_of_the_compilation_that_ran_last() -> None:
    jitted = jit(lambda x: torch.tanh(torch.sin(x)))
    x = torch.randn(5, requires_grad=True)
    with torch.no_grad():
        jitted(x)
    without = report(jitted)
    assert [one.direction for one in without.fusions] == ["forward"]
    jitted(x).sum().backward()
    assert [one.direction for one in report(jitted).fusions] == ["forward", "backward"]
    with torch.no_grad():
        jitted(x)  # a hit of Thunder's cache: its newest backward is not that of this call
    found = report(jitted)
    assert (found.trace, found.to_dict()) == (without.trace, without.to_dict())
    assert all(one.where for one in found.fusions)


def test_a_region_that_fell_back_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.warns(FallbackWarning):
        jitted = called(lambda x, w: torch.cos(x + w) * 17.03125, cache="off")
    ((direction, state, reason),) = states(jitted)
    assert (direction, state) == ("forward", "fell back")
    assert "/bin/false" in reason
    text = str(report(jitted))
    assert "fell back" in text and "views" not in text
    first, *files = reason.splitlines()
    assert files and first in text and not any(line in text for line in files)
    (row,) = why(jitted)
    assert (row.name, row.count, row.state, row.reason) == ("thunderFusion0", 3, state, reason)


def test_a_region_that_fell_back_for_some_arguments() -> None:
    jitted = called(lambda x, w: torch.exp(x + w))
    with pytest.warns(FallbackWarning), pytest.raises(RuntimeError):
        jitted(*(torch.eye(8).to_sparse() for _ in range(2)))
    (fusion,) = report(jitted).fusions
    assert fusion.state == "fell back"
    assert fusion.reason.startswith("for some arguments: ") and "strided" in fusion.reason
    assert len(fusion.kernels) == 1


def test_regions_without_fuel_are_listed() -> None:
    def two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.tanh(x) @ w) * 3

    assert states(called(two, fuel=0)) == [
        ("forward", "left out", "the option fuel is 0"),
        ("forward", "left out", "the option fuel is 0"),
    ]
    jitted = called(two, fuel=1)
    assert [state for _, state, _ in states(jitted)] == ["fused", "left out"]
    left = report(jitted).fusions[1]
    assert [op.text.split(" = ")[1].split("(")[0] for op in left.ops] == ["exp", "mul"]
    assert [(one.name, one.count) for one in why(jitted) if one.state == "left out"] == [
        (left.name, 2)
    ]
    assert "left out" not in str(report(called(two)))


def test_fuel_of_the_executor() -> None:
    fuser.set_fuel(0)
    try:
        assert states(called(product)) == [("forward", "left out", "set_fuel's fuel is used up")]
    finally:
        fuser.set_fuel(thunder.extend.FUEL_LEVEL.UNLIMITED)


def test_views_are_one_line() -> None:
    jitted = called(lambda x, w: (x.t().unsqueeze(0), F.softmax(w.t() @ x, -1).t()))
    found = report(jitted)
    assert "views" in {one.state for one in found.fusions} | {one.state for one in found.unfused}
    lines = [line for line in str(found).splitlines() if "view" in line]
    assert len(lines) == 1 and "views, which torch makes without a kernel: " in lines[0]
    assert "1x matmul" in str(found)


def test_a_graph_of_cuda_hides_no_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transform puts fusions into bound symbols of its own. Here its graphs run as Python."""
    monkeypatch.setattr(
        CUDAGraphRunner, "call_cuda_graph",
        lambda self, name, *args: self.python_callables[name][0](*args),
    )  # fmt: skip
    jitted = thunder.jit(product, executors=[fuser], transforms=[CUDAGraphTransform()])
    jitted(torch.randn(8, 8), torch.randn(8, 8))
    assert "= CUDAGraph" in report(jitted).trace
    assert states(jitted) == [("forward", "fused", "")]


def test_a_pending_negation_hides_no_kernel() -> None:
    jitted = jit(lambda x: torch.exp(x) + 1)
    jitted(torch._neg_view(torch.randn(6)))
    (fusion,) = report(jitted).fusions
    assert (fusion.state, len(fusion.kernels)) == ("fused", 1)


# -------------------------------------------------------------------------- the user's own lines


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        z = self.norm(y)
        z = F.gelu(z)
        return self.drop(z).sum()


def lines(function: Callable[..., Any]) -> list[str]:
    """file:line of each line of a function, its head among them."""
    texts, first = inspect.getsourcelines(function)
    return [f"{__file__}:{first + at}" for at in range(len(texts))]


def ops(fusions: tuple[FusionReport, ...], symbol: str, direction: str) -> set[str]:
    """Where the ops of a name come from."""
    return {
        op.where for one in fusions if one.direction == direction
        for op in one.ops if f"= {symbol}(" in op.text
    }  # fmt: skip


def test_lines_are_those_of_the_user_and_not_of_torch() -> None:
    """nn.Linear calls F.linear, and so on, in torch's files; the backward has no lines in Thunder's
    traces."""
    jitted = jit(Net())
    jitted(torch.randn(4, 8, requires_grad=True)).backward()
    found = report(jitted)
    _, linear, norm, gelu, drop = lines(Net.forward)
    torch_runs = {one.name: one.where for one in found.unfused if one.state == "not claimed"}
    assert torch_runs == {"linear": linear, "matmul": linear}
    for direction in ("forward", "backward"):
        assert ops(found.fusions, "erf", direction) == {gelu}
        assert ops(found.fusions, "random_uniform", direction) == {drop}
    assert ops(found.fusions, "rsqrt", "forward") == {norm}
    assert ops(found.fusions, "pow", "backward") == {gelu}
    wheres = {one.where for one in found.fusions}
    assert all(where.startswith(f"{__file__}:") for where in wheres), wheres


def test_a_function_of_torch_alone_has_the_line_of_its_call() -> None:
    jitted = jit(nn.Sequential(nn.Linear(8, 8), nn.GELU()))
    jitted(torch.randn(4, 8))
    here, _ = inspect.currentframe().f_lineno - 1, None  # type: ignore[union-attr]
    assert {one.where for one in report(jitted).fusions} == {f"{__file__}:{here}"}


def test_functions_without_the_fuser_have_the_lines_that_thunder_gives() -> None:
    jitted = thunder.jit(Net(), executors=[])
    jitted(torch.randn(4, 8))
    files = {bsym.source_filename for bsym in thunder.last_traces(jitted)[0].bound_symbols}
    assert any(file and file.endswith("nn/modules/linear.py") for file in files)


# ------------------------------------------------------------------------ through torch.compile


def broken(x: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x) * 2
    if y.sum() > 1e9:  # two graphs
        return y
    return torch.exp(y) + 1


@pytest.fixture(scope="module")
def backend() -> ThunderCompiler:
    return ThunderCompiler(executors=[fuser])


@pytest.mark.parametrize("kind", ["thunderfx", "torch.compile", "module"])
def test_functions_of_torch_compile(kind: str, backend: ThunderCompiler) -> None:
    torch._dynamo.reset()
    backend.subgraph_infos.clear()
    made = {
        "thunderfx": lambda: thunderfx(broken, executors=[fuser]),
        "torch.compile": lambda: torch.compile(broken, backend=backend),
        "module": lambda: torch.compile(nn.Sequential(nn.GELU()), backend=backend),
    }[kind]()
    with pytest.raises(InputError, match="a function that was called, got one that was not"):
        report(made)
    x = torch.randn(4, 8)
    made(x)
    found = report(made)
    _, first, test, _, last = lines(broken)
    first += f"-{test.rpartition(':')[2]}"
    if kind == "module":
        assert [one.name for one in found.fusions] == ["thunderFusion0"]
    else:
        assert [(one.name, one.state, one.where) for one in found.fusions] == [
            ("graph0.thunderFusion0", "fused", first), ("graph1.thunderFusion0", "fused", last),
        ]
        assert found.name == "broken"
    assert [one.fusion for one in kernels(made)] == [one.name for one in found.fusions]
    assert len(timeline(made).forward) >= len(found.fusions)
    assert len(profile(made, x, rounds=1).fusions) == len(found.fusions)
    if kind != "thunderfx":
        assert str(report(backend)) == str(found)
        with pytest.raises(InputError, match="profile: expected a jitted function"):
            profile(backend, x)


def test_what_graphs_save_is_added_up() -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x @ x)
        torch._dynamo.graph_break()
        return torch.tanh(y @ y)

    torch._dynamo.reset()
    made = thunderfx(two, executors=[fuser])
    made(torch.randn(8, 8, requires_grad=True)).sum().backward()
    found = saved(made)
    assert [one.op for one in found.kept] == ["tanh", "tanh"] and found.bytes == 512
    assert {one.direction for one in report(made).fusions} == {"forward", "backward"}


def test_rows_say_which_graph() -> None:
    found = saved(in_pieces())
    assert {one.name.partition(".")[0] for one in found.kept} == {"graph0", "graph1"}
    assert {one.fusion for one in found.again} <= {one.name for one in report(in_pieces()).fusions}


def in_pieces() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    made = thunderfx(pieces, executors=[fuser])
    made(torch.randn(8, 8, requires_grad=True))
    return made


def pieces(x: torch.Tensor) -> torch.Tensor:
    print("before the first operation")
    y = torch.tanh(x @ x)
    if y.sum() > 100:
        y = y + 1
    y = torch.linalg.inv(y)
    return torch.tanh(y @ y)


def test_why_shows_what_dynamo_left_out() -> None:
    where = lines(pieces)
    outside = {
        (one.name, one.state, one.where): one.reason for one in why(in_pieces())
        if one.state in ("graph break", "left to Inductor")
    }  # fmt: skip
    assert {*outside} == {
        ("line of Python", "graph break", where[1]), ("line of Python", "graph break", where[3]),
        ("linalg_inv", "left to Inductor", where[5]),
    }
    first, branch, inverse = (outside[key] for key in sorted(outside, key=lambda key: key[2]))
    assert "print" in first and "\n" not in first
    assert branch.startswith("a branch on a tensor's value")
    assert inverse == "Thunder has no function for it"


def test_a_module_through_thunderfx() -> None:
    """torch.compile's module asks its own for a truth value, which few modules have."""
    torch._dynamo.reset()
    made = thunderfx(torch.nn.Tanh(), executors=[fuser])
    made(torch.randn(4, 4))
    assert report(made).name == "Tanh"


def test_torch_compile_with_another_backend() -> None:
    with pytest.raises(InputError, match=r"expected a result of thunder\.jit or thunderfx"):
        report(torch.compile(torch.tanh, backend="eager"))


# -------------------------------------------------------------------------------------- profiles


def test_a_profile_times_fusions_and_kernels_and_touches_no_gradient() -> None:
    net = Net()
    jitted = jit(net)
    x = torch.randn(4, 8, requires_grad=True)
    before = jitted(x).detach()
    found = profile(jitted, x, rounds=3)
    assert all(parameter.grad is None for parameter in (x, *net.parameters()))
    assert {one.direction for one in found.fusions} == {"forward", "backward"}
    assert all(one.calls == 1 and one.us > 0 for one in found.fusions)
    assert found.us > 0 and found.rest_us >= 0
    measured = [kernel.measured_us for one in found.report.fusions for kernel in one.kernels]
    assert measured and all(time and time > 0 for time in measured)
    assert jitted(x).shape == before.shape
    plain = report(jitted)
    assert {kernel.measured_us for one in plain.fusions for kernel in one.kernels} == {None}


def test_a_profile_leaves_the_programs_as_they_were() -> None:
    jitted = called(product)
    x = torch.randn(8, 8)
    profile(jitted, x, x, rounds=1)
    (fusion,) = report(jitted).fusions
    assert fusion.program is not None
    scope = fusion.program.program.run.__globals__
    kernel = scope.get("kernel_0_in_c", scope["kernel_0"])
    assert not inspect.isfunction(kernel)
    assert (fusion.state, len(fusion.kernels)) == ("fused", 1)
