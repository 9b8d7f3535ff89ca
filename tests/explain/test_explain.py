# SPDX-License-Identifier: Apache-2.0
"""why, report, kernels and dump of a small function; the helpers of the demo; the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F

from thunder_fuser import FusionDefinition
from thunder_fuser.__main__ import main
from thunder_fuser.demo import accuracy, demo
from thunder_fuser.demo.accuracy import Accuracy
from thunder_fuser.demo.demo import times_of
from thunder_fuser.errors import InputError
from thunder_fuser.explain import dump, kernels, profile
from thunder_fuser.explain.jitted import Jitted, fusions_of, jit, trace_text
from thunder_fuser.explain.reports import fusion_table, report, why
from thunder_fuser.explain.shown import shown_lines, table


def mixed(x: Any, w: Any) -> Any:
    return F.softmax((x * 2 + 1) @ w, -1).t()


@pytest.fixture
def jitted() -> Jitted:
    function = jit(mixed, strict=True)
    function(torch.randn(4, 8), torch.randn(8, 8))
    return function


def test_why_names_the_symbol_the_reason_and_the_line(jitted: Jitted) -> None:
    found = {one.name: (one.reason, shown_lines(one.where)) for one in why(jitted)}
    assert set(found) == {"matmul", "t"}
    reason, line = found["matmul"]
    assert reason == "torch has a kernel for it"
    assert line == f"tests/explain/test_explain.py:{mixed.__code__.co_firstlineno + 1}"
    assert found["t"][0] == "a view, which torch makes without a kernel"


def test_why_answers_for_an_earlier_function_too(jitted: Jitted) -> None:
    jit(torch.exp)(torch.randn(3))
    assert {one.name for one in why(jitted)} == {"matmul", "t"}


def test_why_of_a_function_without_the_fuser() -> None:
    plain = thunder.jit(torch.exp, executors=[])
    plain(torch.randn(3))
    with pytest.raises(InputError, match="jitted with this fuser, got one jitted without it"):
        why(plain)


def test_a_function_that_was_not_called_or_not_jitted() -> None:
    with pytest.raises(InputError, match="a function that was called, got one that was not"):
        report(jit(torch.exp))
    with pytest.raises(InputError, match=r"a result of thunder\.jit"):
        report(torch.exp)


def test_report_has_a_line_a_fusion_and_a_line_a_reason(jitted: Jitted) -> None:
    text = str(report(jitted))
    names = [one.name for one in fusions_of(jitted)]
    assert len(names) == 2
    assert all(text.count(name) == 1 for name in names)
    assert "pointwise" in text and "persistent" in text and "1x matmul" in text


def test_the_table_counts_bytes_and_kernels(jitted: Jitted) -> None:
    head, first, second = fusion_table(report(jitted).fusions).splitlines()
    assert head.split()[:6] == ["fusion", "pass", "state", "ops", "segments", "kernels"]
    assert first.split()[1:-1] == ["forward", "fused", "2", "1", "1", "pointwise", "0.1", "0.1"]
    assert second.split()[4:7] == ["1", "1", "persistent"]


def test_times_are_measured(jitted: Jitted) -> None:
    times = times_of(jitted, torch.device("cpu"))
    *_, last = fusion_table(report(jitted).fusions, times).splitlines()
    fused, by_op = last.split()[-2:]
    assert float(fused) > 0 and float(by_op) > 0


def test_trace_text_shows_the_ops_of_each_fusion(jitted: Jitted) -> None:
    lines = trace_text(jitted).splitlines()
    assert lines[0].strip().endswith("thunderFusion0(x)")
    assert lines[1].strip() == "# mul add"
    assert "matmul" in lines[2]
    assert lines[-1].strip().startswith("return")


def test_kernels_have_source_and_launch(jitted: Jitted) -> None:
    first, second = kernels(jitted)
    assert (first.fusion, first.scheduler, first.ops) == (
        "thunderFusion0", "pointwise", ("mul", "add")
    )
    assert "max" in second.ops
    assert all(kernel.name in kernel.source for kernel in (first, second))


def test_kernels_of_the_emulator_are_cuda() -> None:
    function = jit(mixed, strict=True, emulate=True)
    function(torch.randn(4, 8), torch.randn(8, 8))
    assert all("__global__" in kernel.source for kernel in kernels(function))
    assert all(kernel.block > (1, 1, 1) for kernel in kernels(function))


def test_arguments_of_the_wrong_type_are_named(jitted: Jitted) -> None:
    with pytest.raises(InputError, match="dump: expected a folder, as a str or a Path, got 3"):
        dump(jitted, 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"1 round or more, got .* 1\.5 rounds"):
        profile(jitted, torch.randn(4, 8), rounds=1.5)  # type: ignore[arg-type]


def test_dump_writes_a_folder_a_fusion_and_the_definition_runs(
    jitted: Jitted, tmp_path: Path
) -> None:
    folders = dump(jitted, tmp_path)
    assert [folder.parent.name for folder in folders] == ["thunderFusion0", "thunderFusion1"]
    names = {path.name for path in folders[0].iterdir()}
    assert names == {
        "0_fusion.py", "1_specialised.py", "2_segments.txt", "3_schedule_0.py", "4_kernel_0.cpp",
        "5_program.py",
    }
    x = torch.randn(4, 8)
    torch.testing.assert_close(_execute(folders[0] / "0_fusion.py", x), x * 2 + 1)


def _execute(path: Path, x: torch.Tensor) -> torch.Tensor:
    from thunder_fuser import DataType

    scope: dict[str, Any] = {"DataType": DataType}
    exec(path.read_text(encoding="utf-8"), scope)
    with FusionDefinition() as fd:
        scope["fusion"](fd)
    return fd.execute([x])[0]


def test_an_error_passes_below_either_bound() -> None:
    assert Accuracy("a", fused=1.1, eager=1.0, floor=0.0).passes
    assert Accuracy("a", fused=1.3, eager=1.0, floor=1.4).passes
    assert not Accuracy("a", fused=1.3, eager=1.0, floor=1.2).passes


def test_a_wrong_gradient_does_not_pass() -> None:
    module = torch.nn.Linear(4, 4)
    sample = (torch.randn(3, 4), torch.randn(3, 4))
    rows = accuracy.accuracy(module, lambda x: module(x.detach()) + 0 * x, [sample])
    assert {row.name: row.passes for row in rows} == {
        "output": True, "d input": False, "d weight": True, "d bias": True
    }


def test_columns_of_numbers_go_to_the_right() -> None:
    text = table(("name", "n"), [("2x a", "1"), ("b", "1.5e-03")])
    assert text.splitlines() == ["  name        n", "  2x a        1", "  b     1.5e-03"]


# ------------------------------------------------------------------------------ the command line


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "demo" in text and "env" in text


def test_env_lists_versions_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env"]) == 0
    text = capsys.readouterr().out
    assert torch.__version__ in text
    assert "THUNDER_FUSER_STRICT" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--dtype", "f8"], "invalid choice"),
        (["demo", "--emulate", "--device", "cuda"], "--device cuda"),
        (["nothing"], "argument COMMAND: invalid choice"),
    ],
)
def test_a_wrong_command_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_the_demo_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--device", "cpu", "--small", "--dtype", "f32"]) == 0
    text = capsys.readouterr().out
    for part in ("gpt2 block, f32", "llama block, f32", "Forward trace", "persistent",
                 "torch has a kernel for it", "Cache: ", "d norm_1.weight", "within its tolerance"):
        assert part in text


def test_the_demo_fails_with_an_error_out_of_tolerance(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(accuracy, "FACTOR", 0.0)
    monkeypatch.setattr(accuracy, "FLOOR_ULPS", 0)
    monkeypatch.setattr(demo, "BLOCKS", ("gpt2",))
    assert main(["demo", "--device", "cpu", "--small", "--dtype", "f32"]) == 1
    assert "TOO LARGE" in capsys.readouterr().out


def test_a_folder_within_a_path_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/tmp", *sys.path])
    for where in ("/home/ann/tmp/model.py:3", "/mnt/tmp/a.py:1", "tmp/b.py:2"):
        assert shown_lines(where) == where
    assert shown_lines("/tmp/a.py:1, /tmp/b.py:2") == "a.py:1, b.py:2"
