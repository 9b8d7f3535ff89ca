# SPDX-License-Identifier: Apache-2.0
"""The autotune benchmark: a run in parts, the second process, and its summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.autotune import AUTOTUNED, OWN, Gain
from thunder_fuser.autotune import tune

COMMAND = ["autotune", "--device", "cpu", "--sizes", "small", "--ops", "column_sum|^add$",
           "--dtypes", "f32", "--no-compile", "--seconds", "0.05"]  # fmt: skip


def test_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two parts have all points; the second one's summary has both; a new process finds all."""
    monkeypatch.setenv("THUNDER_FUSER_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("THUNDER_FUSER_CACHE", "rw")
    tune.forget()
    files = [str(tmp_path / f"{part}.json") for part in (1, 2)]
    assert main([*COMMAND, "--part", "1/2", "--json", files[0]]) == 0
    assert main([*COMMAND, "--part", "2/2", "--json", files[1], "--read", files[0]]) == 0
    first, both = (json.loads(Path(name).read_text())["figures"] for name in files)
    assert len(first["points"]) == 2 and len(both["points"]) == 4
    for figures in (first, both):
        assert figures["second"]["searched"] == 0 and figures["second"]["found"] >= 2
        assert not figures["left"]
    assert both["geometric_means"][OWN]["points"] == 4
    same = [one for one in both["points"] if not one["changed"]]
    assert all(one["us"][OWN] == one["us"][AUTOTUNED] for one in same)
    assert "times as fast as own schedule over 4 points" in capsys.readouterr().out


def test_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    assert main([*COMMAND, "--budget", "0", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())["figures"]
    assert len(figures["left"]) == 4


@pytest.mark.parametrize("given", [["--part", "3/2"], ["--part", "x"], ["--read", "absent.json"]])
def test_wrong_options(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, *given]) == 1
    assert given[0] in capsys.readouterr().err


def test_gains() -> None:
    us = {OWN: 12.0, AUTOTUNED: 10.0}
    assert Gain("a", us, changed=True).over(OWN) == 1.2
    assert Gain("a").over(OWN) is None
