# SPDX-License-Identifier: Apache-2.0
"""The regions that the backward's cut prices are the regions that run, in every model of the tests.

What crosses from one region to the next is rounded to its type, also where a long run was split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.models import MODELS, arguments

from benchmarks.models import MODELS as DEEP
from benchmarks.models import make_model
from thunder_fuser.demo.blocks import SMALL, make_input
from thunder_fuser.explain.jitted import claims_of, fusions_of, jit, recomputation_of
from thunder_fuser.rematerialization.policy import VIEW
from thunder_fuser.trace.proxies import makes
from thunder_fuser.trace.rewrites.split_regions import MIN_OPS

Call = Callable[[Any], torch.Tensor]


def block(name: str, dtype: torch.dtype) -> tuple[Call, Any]:
    x, _ = make_input(SMALL, dtype, "cpu")
    return make_model(name, 2, SMALL, dtype), (x.requires_grad_(),)


def function(name: str, dtype: torch.dtype) -> tuple[Call, Any]:
    return MODELS[name][0], arguments(name, dtype)


CASES = {
    **{f"{name} function": (function, name) for name in MODELS},
    **{f"{name} module": (block, name) for name in DEEP},
}


@pytest.mark.parametrize("policy", ["time", "memory"])
@pytest.mark.parametrize("case", CASES)
def test_priced_regions_run(case: str, policy: str) -> None:
    make, name = CASES[case]
    call, args = make(name, torch.bfloat16)
    jitted = jit(call, strict=True, rematerialization=policy)
    jitted(*args).sum().backward()
    operations = recomputation_of(jitted).forward.operations
    priced = {
        value.name: op.region
        for op in operations for value in op.outputs if VIEW not in value.tags
    }  # fmt: skip
    ran = {
        made.name: number
        for number, region in enumerate(claims_of(jitted).regions)
        if not region.is_backward and not region.makes_views
        for leaf in region.leaves for made in makes(leaf)
    }  # fmt: skip
    pairs = {(priced[value], ran[value]) for value in priced.keys() & ran.keys()}
    assert pairs and None not in {region for region, _ in pairs}
    assert len(pairs) == len({one for one, _ in pairs}) == len({number for _, number in pairs})


def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> Any:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def test_both_halves_of_swiglu_are_priced_as_one() -> None:
    shapes = ((8, 16), (40, 16), (40, 16), (16, 40))
    jitted = jit(swiglu, strict=True)
    jitted(*(torch.randn(shape, requires_grad=True) for shape in shapes)).sum().backward()
    operations = recomputation_of(jitted).forward.operations
    regions = [op.region for op in operations if op.region is not None and op.operations]
    assert len(regions) > 1 and len({*regions}) == 1


def test_what_crosses_a_split_is_rounded() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(MIN_OPS):
            x = torch.tanh(x) + 0.25
        return x

    x = torch.randn(33).bfloat16()
    jitted = jit(chain, strict=True)
    result = jitted(x)
    fusions = fusions_of(jitted)
    assert len(fusions) > 1
    for one in fusions:
        (given,), (made,) = one.region.inputs, one.region.outputs
        assert given.dtype.bytes == made.dtype.bytes == 2
    torch.testing.assert_close(result, chain(x.float()).bfloat16(), rtol=0.02, atol=0)
