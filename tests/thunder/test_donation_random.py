# SPDX-License-Identifier: Apache-2.0
"""Random programs whose regions leave nan in all that was donated: nobody reads it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from thunder_fuser.executors.record.torch_function import torch_function
from thunder_fuser.executors.run import region_callable as callables
from thunder_fuser.explain.jitted import jit

CALLS = (
    "{a} @ {b}", "F.linear({a}, {b})", "{a}.t()", "{a}.reshape(64).reshape(8, 8)", "{a}.detach()",
    "{a} * {b}", "torch.swapaxes({a}, 0, 1)", "F.gelu({a})", "torch.sort({a}, 0)[0]",
    "torch.cat({a}.unbind(0)).reshape(8, 8)",
)  # fmt: skip
READ = st.integers(0, 2)
STEPS = st.lists(st.tuples(st.sampled_from(CALLS), READ, READ), min_size=2, max_size=6)


def function(steps: list[tuple[str, int, int]], returned: list[int]) -> Any:
    """Each step reads one or two of the last three values; the last of all reads a product."""
    names, lines = ["w", "x", "t0"], ["def f(x, w):", "  t0 = x @ w"]
    for call, a, b in steps:
        text = call.format(a=names[-1 - a], b=names[-1 - b])
        names.append(f"t{len(lines)}")
        lines.append(f"  {names[-1]} = {text}")
    others = "".join(f"{names[-1 - one]}, " for one in returned)
    lines.append(f"  return (((w @ x - {names[-1]}).cos() * t0.cos()).sum(), {others})")
    scope: dict[str, Any] = {"torch": torch, "F": F}
    exec("\n".join(lines), scope)
    return scope["f"]


def with_nans(region: callables.RegionCallable, donated: tuple[str, ...], args: Any) -> Any:
    run = torch_function(region.region, region.name)

    def call(*values: Any) -> list[torch.Tensor]:
        found = [result.clone() for result in run(*values)]
        for proxy, value in zip(region.region.inputs, values, strict=True):
            if proxy.name in donated:
                value.fill_(torch.nan)
        return found

    return call


def results(f: Any, trains: bool, **given: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    values = [torch.randn(8, 8, requires_grad=trains) for _ in range(2)]
    found = [*jit(f, **given)(*values)]
    for last in (False, True) if trains else ():
        found += torch.autograd.grad(found[0], values, retain_graph=not last, allow_unused=True)
    return [one.detach() for one in (*found, *values) if one is not None]


@settings(max_examples=15, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(STEPS, st.lists(READ, max_size=2), st.booleans())
@example([("{a}.detach()", 0, 0)], [0], False)
def test_nothing_reads_what_was_donated(steps: Any, returned: list[int], trains: bool) -> None:
    f = function(steps, returned)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callables.RegionCallable, "_compiled", with_nans)
        on, off = (results(f, trains, donation=donation) for donation in (True, False))
    assert all(torch.equal(*map(torch.nan_to_num, pair)) for pair in zip(on, off, strict=True))
