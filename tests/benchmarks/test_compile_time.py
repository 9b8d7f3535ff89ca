# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks compile`: its model, its figures, its bounds and its command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import pytest
import torch
from helpers.forked import forked

from benchmarks.__main__ import main
from benchmarks.compile_time import run
from benchmarks.compile_time.layers import arguments, residual, step
from benchmarks.compile_time.measure import Measured, Seconds, Wanted, measure
from benchmarks.compile_time.run import Row, bounds
from thunder_fuser.base.stages import STAGES
from thunder_fuser.errors import InputError


def row(layers: int, ours: float, kernels: int = 5) -> Row:
    counts = Measured(layers, {}, {}, 6 * layers, 14 * layers, 4, kernels, 0.0)
    return Row("none", "cold", layers, 1, Seconds(ours, ours), Seconds(layers, layers), counts)


def met(*rows: Row) -> dict[str, bool]:
    return {one.name.partition(": ")[2]: one.met for one in bounds(rows)}


def test_the_model_has_two_matmuls_a_layer_and_gradients_of_all() -> None:
    x, weights = arguments(3)
    assert len(weights) == 6 and all(one.requires_grad for one in (x, *weights))
    found = step(residual, 3)
    assert len(found) == 2 + 6
    once = torch.tanh(x) @ weights[0] + x
    torch.testing.assert_close(residual(x, weights[:2]), torch.tanh(once) @ weights[1] + once)


def test_a_measurement_has_times_counts_and_stages() -> None:
    found = measure(Wanted(2, options={"rematerialization": "none"}))
    assert found.seconds["ours"].wall > 0 and found.seconds["thunder"].cpu > 0
    assert set(found.stages) <= set(STAGES) and found.stages["claim"][1] == 1
    # Forward: 2N + 1 regions. Backward: 2N of the tanhs, and the sums of the residual stream.
    assert found.regions == 4 * 2 + 2 * 2 + 2
    assert found.ops > found.regions and found.largest <= 4 and 1 <= found.kernels <= 5
    assert found.error < run.ERROR_LIMIT


def test_bounds_are_met_and_missed() -> None:
    good = [row(16, 17), row(32, 34), row(64, 70), row(128, 150)]
    assert all(met(*good).values()) and len(met(*good)) == 5
    late = row(128, 200)
    slow = met(*good[:-1], replace(late, ours=Seconds(200, 150)))
    assert slow == {
        "wall time over Thunder's own, 128 layers": False,
        "wall time over that of half the layers, from 32 on": False,
        "cpu time over Thunder's own, 128 layers": True,
        "cpu time over that of half the layers, from 32 on": True,
        "kernels of 128 layers": True,
    }
    assert not met(*good[:-1], row(128, 150, kernels=6))["kernels of 128 layers"]
    assert met(row(1, 1), row(2, 9)) == {}


def test_loading_has_a_tighter_bound_than_compiling() -> None:
    rows = [row(128, 1.25 * 128), replace(row(128, 1.25 * 128), state="warm")]
    found = [(one.met, one.limit) for one in bounds(rows)]
    assert found == [(True, 1.35), (True, 1.35), (False, 1.15), (False, 1.15)]


def test_a_second_process_must_find_every_kernel(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="assert_cache_hit"):
        run._in_a_process(1, "none", "warm", str(tmp_path), "ours")


def test_the_command_prints_a_table_and_writes_a_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forked_run(command: list[str], env: dict[str, str], **_: bool) -> SimpleNamespace:
        script = Path(mkdtemp(dir=tmp_path), "measure.py")
        module, argument = command[-2:]
        script.write_text(
            f"import os, runpy, sys; os.environ.update({env!r}); sys.argv[1:] = [{argument!r}]\n"
            f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
        )
        status, out, err = forked(script)
        return SimpleNamespace(returncode=status, stdout=out, stderr=err)

    monkeypatch.setattr(run, "subprocess", SimpleNamespace(run=forked_run))
    path = tmp_path / "found.json"
    given = ["compile", "--layers", "1", "--repeats", "1", "--policies", "none"]
    assert main([*given, "--json", str(path)]) == 0
    cold, warm = json.loads(path.read_text())["figures"]["rows"]
    assert (cold["state"], warm["state"]) == ("cold", "warm")
    assert cold["layers"] == 1 and cold["counts"]["kernels"] == warm["counts"]["kernels"] == 5
    assert cold["ratio"] == cold["ours"]["wall"] / cold["alone"]["wall"]
    text = capsys.readouterr().out
    assert "Seconds of the first training step" in text and "Milliseconds in our own" in text


def test_a_wrong_result_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    right = row(1, 1.0).counts
    right = replace(right, seconds={"ours": Seconds(1, 1), "thunder": Seconds(1, 1)})
    monkeypatch.setattr(run, "_in_a_process", lambda *given, **more: replace(right, error=0.1))
    assert main(["compile", "--layers", "1"]) == 1
    monkeypatch.setattr(run, "_in_a_process", lambda *given, **more: right)
    assert main(["compile", "--layers", "1"]) == 0


@pytest.mark.parametrize("layers", ["0", "1,x", "", "-2", "1,,2"])
def test_layers_are_counts(layers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compile", f"--layers={layers}"])
    assert "a count of 1 or more" in capsys.readouterr().err
