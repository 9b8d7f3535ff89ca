# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks kernels` on tiny sizes: figures, checks, budget, gates and output."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from benchmarks.__main__ import main
from benchmarks.allocator import can_keep, kept
from benchmarks.clock import Spread, cpu_times
from benchmarks.facts import commit
from benchmarks.kernels import contenders, run
from benchmarks.kernels.check import Reference, fault, limit_for
from benchmarks.kernels.figure import Error, Figure
from benchmarks.kernels.gates import Verdict, geometric_mean, verdicts, worst
from benchmarks.kernels.measure import Settings, measure
from benchmarks.kernels.operation import as_list, fill, make_definition, make_inputs
from benchmarks.kernels.points import BYTES, DTYPES, OPERATIONS, SIZES, Point, points
from benchmarks.kernels.summary import figure_table, summary
from thunder_fuser.errors import InputError
from thunder_fuser.explain import memory

CPU = torch.device("cpu")
TINY = ["kernels", "--device", "cpu", "--sizes", "small", "--no-compile"]


def measured(path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the figures in the JSON."""
    code = main([*TINY, "--json", str(path / "found.json"), *arguments])
    return code, json.loads((path / "found.json").read_text())["figures"]


def tiny(name: str, dtype: str = "f32") -> Point:
    op = OPERATIONS[name]
    return Point(op, dtype, fill(op, op.sizes.small[0], DTYPES[dtype], 1 << 12))


# -------------------------------------------------------------------------------- the operations


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_right_on_the_cpu(name: str) -> None:
    figure = measure(tiny(name, "bf16"), Settings(CPU, seconds=0.0))
    if figure.state == "skipped":
        assert figure.note.startswith("ops.")
        return
    assert figure.state == "measured" and not figure.wrong
    assert {"ours", "eager", "clone"} <= set(figure.us)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "dropout_add"])
def test_every_operation_is_right_in_the_emulator(name: str) -> None:
    point = tiny(name)
    inputs = make_inputs(point.op, point.shape, torch.float32, CPU)
    fd = make_definition(point.op, point.shape, inputs)
    error = Reference(point.op, inputs).error(fd.execute(inputs, target="emulator"))
    assert not fault(error, limit_for(point.op, torch.float32, Error(0.0, 0.0)))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_shapes_fill_the_bytes_of_the_run(sizes: str, device: str) -> None:
    for point in points("", (), sizes, torch.device(device)):
        arguments = point.op.arguments(point.shape)
        largest = max(math.prod(one.shape) for one in arguments) * point.torch_dtype.itemsize
        limit = BYTES[sizes][device]
        assert largest <= limit or point.shape[0] == 1, point
        assert min(point.shape) >= 1


def test_every_operation_has_points_in_every_run() -> None:
    for op in OPERATIONS.values():
        assert op.sizes.gate and op.sizes.small
        assert set(op.sizes.gate_f32) <= set(op.sizes.gate)


def test_bytes_are_each_input_once_and_each_result_once() -> None:
    point = tiny("layer_norm_bwd", "bf16")
    rows, columns = point.shape
    figure = measure(point, Settings(CPU, seconds=0.0))
    # dy, x, dx; the weight and both its gradients; mean and rstd
    assert figure.bytes == 2 * (3 * rows * columns + 3 * columns + 2 * rows)


# ---------------------------------------------------------------------------------------- the run


def test_the_json_has_facts_points_means_and_no_gates_of_a_cpu(tmp_path: Path) -> None:
    code, found = measured(tmp_path, "--ops", "^(add|softmax)$", "--dtypes", "f32")
    assert code == 0
    facts = json.loads((tmp_path / "found.json").read_text())["facts"]
    assert {"command", "date", "commit", "device", "torch"} <= set(facts)
    assert [point["op"] for point in found["points"]] == ["add", "add", "softmax", "softmax"]
    for point in found["points"]:
        assert point["state"] == "measured" and not point["wrong"]
        for times in (*point["us"].values(), *point["us_fresh"].values()):
            assert 0 < times["least"] <= times["p20"] <= times["us"] <= times["p80"]
    assert found["points"][0]["bytes"] == 3 * 4 * math.prod(found["points"][0]["shape"])
    assert found["geometric_means"]["eager"]["points"] == 4
    assert found["left"] == [] and found["gates"] == []


def test_the_table_is_sorted_by_operation_and_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--ops", "^(softmax|add)$", "--dtypes", "bf16"]) == 0
    text = capsys.readouterr().out
    lines = [line.split()[:3] for line in text.splitlines() if " bf16 " in line]
    assert lines[:4] == [
        ["add", "bf16", "248x33"], ["add", "bf16", "85x96"],
        ["softmax", "bf16", "248x33"], ["softmax", "bf16", "64x128"],
    ]
    assert "Geometric means" in text and "Worst points" in text and "Gates" not in text


def off_in_one_element(*tensors: torch.Tensor) -> torch.Tensor:
    result = torch.add(*tensors)
    result[-1, -1] += 1
    return result


def with_a_nan(*tensors: torch.Tensor) -> torch.Tensor:
    result = torch.add(*tensors)
    result[0, 0] = math.nan
    return result


def of_another_shape(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.add(*tensors)[:-1]


@pytest.mark.parametrize("wrong", [off_in_one_element, with_a_nan, of_another_shape])
@pytest.mark.parametrize("name", ["ours", "eager"])
def test_a_wrong_result_is_reported_and_not_timed(
    name: str, wrong: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(contenders.CONTENDERS, name, lambda op, shape, inputs: wrong)
    code, found = measured(tmp_path, "--ops", "^add$", "--dtypes", "f32")
    assert code == (1 if name == "ours" else 0)
    assert "WRONG" in capsys.readouterr().out
    for point in found["points"]:
        assert set(point["wrong"]) == {name} and name not in point["us"]
        assert point["state"] == ("wrong" if name == "ours" else "measured")
        assert bool(point["us"]) == (name == "eager")


def test_a_baseline_that_fails_is_a_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*tensors: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no kernel")

    monkeypatch.setitem(contenders.CONTENDERS, "eager", lambda op, shape, inputs: broken)
    code, found = measured(tmp_path, "--ops", "^add$", "--dtypes", "f32")
    assert code == 0
    assert found["points"][0]["broken"] == {"eager": "RuntimeError: no kernel"}
    assert "ours" in found["points"][0]["us"]


def test_what_the_fuser_cannot_do_is_skipped_and_what_breaks_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*given: Any) -> Any:
        raise RuntimeError("a bug")

    add = OPERATIONS["add"]
    unknown = replace(add, name="add_1", define=lambda ops, shape, a, b: ops.not_an_op(a, b))
    monkeypatch.setitem(OPERATIONS, "add_1", unknown)
    monkeypatch.setitem(OPERATIONS, "add_2", replace(add, name="add_2", define=breaks))
    code, found = measured(tmp_path, "--ops", "^add(_.)?$", "--dtypes", "f32")
    assert code == 1
    states = {point["op"]: (point["state"], point["note"][:20]) for point in found["points"]}
    assert states == {
        "add": ("measured", ""),
        "add_1": ("skipped", "ops.not_an_op: expec"),
        "add_2": ("failed", "RuntimeError: a bug"),
    }
    text = capsys.readouterr().out
    assert "skipped: ops.not_an_op" in text and "failed: RuntimeError: a bug" in text


def test_no_point_is_begun_after_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(run.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(
        run, "measure",
        lambda point, settings: Figure(point.op.name, point.op.group, point.dtype, point.shape),
    )
    # The start is 0, and the clock is asked before each point: 1, 2, 3.
    _, found = measured(tmp_path, "--ops", "^add$", "--budget", "3")
    assert [point["dtype"] for point in found["points"]] == ["bf16", "bf16"]
    assert found["left"] == ["add f32 124x33", "add f32 42x96"]
    assert "budget of 3 s was spent: add f32 124x33, add f32 42x96" in capsys.readouterr().out


def test_torch_compile_is_a_contender(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slow half, Inductor, left out: a first use of that takes half a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    settings = Settings(CPU, ("eager", "ours", "compile"), 0.0)
    figure = measure(tiny("layer_norm"), settings)
    assert "compile" in figure.us and not figure.wrong


@pytest.mark.parametrize(("pattern", "message"), [
    ("(", r"--ops: expected a regular expression, got '\('"),
    ("nonsense", r"--ops: expected one of add, .*, got 'nonsense'"),
])
def test_a_pattern_that_finds_nothing(pattern: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        points(pattern, (), "small", CPU)


# --------------------------------------------------------------------------------- checks, clocks


def test_a_row_left_out_is_seen() -> None:
    """NaNs of a poisoned output would be over every limit; so is an old value."""
    point = tiny("softmax")
    inputs = make_inputs(point.op, point.shape, torch.float32, CPU)
    right = as_list(point.op.run_eager(*inputs))
    reference = Reference(point.op, inputs)
    limit = limit_for(point.op, torch.float32, reference.error(right))
    assert not fault(reference.error(right), limit)
    right[0][3] = 0
    assert fault(reference.error(right), limit)


def test_moved_data_must_be_equal() -> None:
    point = tiny("transpose")
    inputs = make_inputs(point.op, point.shape, torch.float32, CPU)
    reference = Reference(point.op, inputs)
    (moved,) = as_list(point.op.run_eager(*inputs))
    limit = limit_for(point.op, torch.float32, Error(0.0, 0.0))
    assert not fault(reference.error([moved]), limit)
    assert fault(reference.error([moved * (1 + 2.0**-22)]), limit)


def test_dropout_is_checked_by_what_it_kept() -> None:
    point = Point(OPERATIONS["dropout_add"], "f32", (256, 256))
    x, residual = inputs = make_inputs(point.op, point.shape, torch.float32, CPU)
    reference = Reference(point.op, inputs)
    assert reference.error([residual + F.dropout(x, 0.1)]).largest < 1e-6
    assert reference.error([residual + F.dropout(x, 0.1) * 0.9]).largest > 1e-2
    with pytest.raises(AssertionError, match=r"dropout kept 0\.5"):
        reference.error([residual + F.dropout(x, 0.5) * 0.5 / 0.9])


def test_contenders_take_turns_and_buffers_rotate() -> None:
    seen: list[str] = []
    calls = {
        name: [lambda n=name, k=k: seen.append(f"{n}{k}") for k in range(3)] for name in "ab"
    }
    found = cpu_times(calls, 0.0, keep=True)
    assert {name: spread.runs for name, spread in found.items()} == {"a": 5, "b": 5}
    turns = seen[4:]  # after the warm-ups
    assert turns[:8] == ["a0", "b0", "a1", "b1", "a2", "b2", "a0", "b0"]


@pytest.mark.skipif(not can_keep(), reason="needs glibc")
def test_kept_memory_stays_with_the_process() -> None:
    size = 64 << 20

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def use() -> None:
        torch.empty(size, dtype=torch.uint8).fill_(1)

    before = resident()
    with kept():
        use()
        assert resident() - before > size * 0.9
    assert resident() - before < size * 0.5
    use()
    assert resident() - before < size * 0.5


def test_the_commit_is_of_this_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_COMMIT", "given")
    assert commit() == "given"


# ------------------------------------------------------------------------------------------ gates


def figure(
    op: str, columns: int, state: str = "measured", size: int = 1 << 30, **us: float
) -> Figure:
    """A hand-made one: the times are those of `ours`, `clone`, ..."""
    spreads = {name: Spread(value, value, value, value, 9) for name, value in us.items()}
    return Figure(
        op, OPERATIONS[op].group, "bf16", (4, columns), state=state, bytes=size, us=spreads
    )


def verdict(name: str, *figures: Figure) -> Verdict:
    return next(one for one in verdicts(figures) if one.name == name)


def test_a_gate_is_met_if_every_point_reaches_it() -> None:
    name = "softmax and norms, 1K to 16K columns"
    found = verdict(
        name, figure("softmax", 4096, ours=100, clone=86),
        figure("layer_norm", 1024, ours=100, clone=85), figure("softmax", 32768, ours=100, clone=1),
    )
    assert (found.state, found.points, found.lowest, found.misses) == ("met", 2, 0.85, ())


def test_a_missed_gate_names_its_points() -> None:
    found = verdict(
        "transpose", figure("transpose", 8192, ours=100, clone=79),
        figure("nchw_to_nhwc", 56, ours=100, clone=95),
    )
    assert (found.state, found.bound) == ("MISSED", "80% of clone")
    assert found.misses == (("transpose bf16 4x8192", 0.79),)


def test_gates_look_at_large_points_only_and_at_their_own_yardstick() -> None:
    assert verdict("column sum").state == "not measured"
    small = figure("column_sum", 64, size=1 << 20, ours=100, clone=10)
    assert verdict("column sum", small).state == "not measured"
    entropy = figure("cross_entropy", 32000, ours=100, clone=200, read=84)
    assert verdict("cross entropy", entropy).state == "MISSED"
    assert verdict("cross entropy", replace(entropy, us={})).state == "not measured"


def test_a_wrong_result_meets_no_gate() -> None:
    found = verdict("norm backward", figure("rms_norm_bwd", 4096, state="wrong"))
    assert (found.state, found.lowest) == ("MISSED", 0.0)
    skipped = verdict("norm backward", figure("rms_norm_bwd", 4096, state="skipped"))
    assert skipped.state == "not measured"


@pytest.mark.parametrize(("times", "state"), [((100, 110), "met"), ((100, 90), "MISSED")])
def test_the_mean_against_torch_compile(times: tuple[float, float], state: str) -> None:
    figures = [
        figure("add", 64, ours=100, compile=times[0]),
        figure("softmax", 64, ours=100, compile=times[1]),
        figure("rope", 64, ours=100),
    ]
    mean, count = geometric_mean(figures, "compile")
    assert mean == pytest.approx(math.sqrt(times[0] * times[1]) / 100) and count == 2
    assert verdict("all points together", *figures).state == state
    assert worst(figures, "compile", 1) == [min(
        ("add bf16 4x64", times[0] / 100), ("softmax bf16 4x64", times[1] / 100),
        key=lambda one: one[1],
    )]


def test_a_summary_of_a_gpu_has_gates() -> None:
    text = summary([figure("transpose", 8192, ours=100, clone=79, eager=300, compile=50)], "cuda")
    lines = (" ".join(line.split()) for line in text.splitlines())
    row = next(line for line in lines if line.startswith("transpose 80%"))
    assert row == "transpose 80% of clone MISSED 1 0.790 transpose bf16 4x8192 0.79"
    assert "x eager" in figure_table([figure("add", 64, ours=1, eager=2)])


# ------------------------------------------------------------------------------------------- plot


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
def test_a_picture_is_written(tmp_path: Path) -> None:
    path = tmp_path / "kernels.png"
    measured(tmp_path, "--ops", "^add$", "--dtypes", "f32", "--plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "find_spec", lambda name: None)
    monkeypatch.setattr(run, "measure", None)
    assert main([*TINY, "--ops", "^add$", "--plot", "kernels.png"]) == 1
    assert "pip install 'thunder-fuser[plot]'" in capsys.readouterr().err
