# SPDX-License-Identifier: Apache-2.0
"""torch's profiler shows regions and CPU kernels by their names, and costs nothing otherwise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from thunder_fuser import FusionDefinition
from thunder_fuser.explain.jitted import fusions_of, jit
from thunder_fuser.host import ranges
from thunder_fuser.host.call import dispatch
from thunder_fuser.host.call.dispatch import make_dispatch
from thunder_fuser.host.call.native import native
from thunder_fuser.options import options

WAYS = pytest.mark.parametrize(
    "in_c",
    [
        pytest.param(True, marks=pytest.mark.skipif(native() is None, reason="no compiler")),
        False,
    ],
)
CPU = (ProfilerActivity.CPU,)


def function(x: Any, w: Any) -> Any:
    return torch.softmax((torch.nn.functional.gelu(x) @ w) * 2, -1)


def spans(found: profile, folder: Path) -> dict[str, tuple[float, float]]:
    """The first and last microsecond of each name in the Chrome trace."""
    found.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X"}


@WAYS
@pytest.mark.parametrize("emulate", [False, True])
def test_kernels_are_inside_their_regions(tmp_path: Path, in_c: bool, emulate: bool) -> None:
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8)
    with options(native_calls=in_c, emulate=emulate):
        jitted = jit(function, strict=True)
        jitted(x, w).sum().backward()
        with profile(activities=CPU) as found:
            jitted(x, w).sum().backward()
    by_name = spans(found, tmp_path)
    names = [one.name for one in fusions_of(jitted) if not one.region.makes_views]
    kernels = [name for name in by_name if name.startswith("fused_")]
    assert len(names) >= 3 and set(names) <= set(by_name)
    assert {"fused_gelu_f32_pointwise", "fused_mul_softmax_f32_persistent"} < set(kernels)
    for kernel in kernels:
        start, end = by_name[kernel]
        assert any(by_name[name][0] <= start and end <= by_name[name][1] for name in names)


@WAYS
def test_kernels_of_a_definition(tmp_path: Path, in_c: bool) -> None:
    x = torch.randn(4, 8)
    with options(native_calls=in_c), FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.from_pytorch(x)))
    with options(native_calls=in_c):
        fd.execute([x])
        with profile(activities=CPU) as found:
            (result,) = fd.execute([x])
    torch.testing.assert_close(result, x.exp())
    assert "fused_exp_f32_pointwise" in spans(found, tmp_path)


@WAYS
def test_without_a_profiler_no_range_is_made(
    monkeypatch: pytest.MonkeyPatch, in_c: bool
) -> None:
    def never(name: str) -> None:
        raise AssertionError(f"a range {name} without a profiler")

    monkeypatch.setattr(ranges, "record_function", never)
    monkeypatch.setattr(dispatch, "record_function", never)
    x, w = torch.randn(3, 8), torch.randn(8, 8)
    with options(native_calls=in_c):
        jitted = jit(function, strict=True)
        torch.testing.assert_close(jitted(x, w), function(x, w))
        with profile(activities=CPU), pytest.raises(AssertionError, match="a range thunderFus"):
            jitted(x, w)


@WAYS
def test_an_error_ends_the_range(tmp_path: Path, in_c: bool) -> None:
    def miss(arguments: Sequence[Any]) -> Any:
        raise ValueError("no program")

    with options(native_calls=in_c):
        call = make_dispatch([("x", "tensor")], miss, checked=False, name="failing")
    with profile(activities=CPU) as found:
        for _ in range(2):
            with pytest.raises(ValueError, match="no program"):
                call(torch.ones(2))
        torch.ones(2).add(1)
    by_name = spans(found, tmp_path)
    assert by_name["failing"][1] <= by_name["aten::add"][0]
    assert sum(event.key == "failing" and event.count == 2 for event in found.key_averages()) == 1
