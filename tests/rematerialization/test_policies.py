# SPDX-License-Identifier: Apache-2.0
"""What policies make of Thunder's traces: bits of the gradients, bytes kept, ops recomputed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from helpers.models import MODELS, arguments

from thunder_fuser.explain.jitted import jit, recomputation_of

POLICIES = ("none", "time", "memory")
MORE = ("budget(0.5)", "save_only()")  # of the smallest model alone: compiling takes seconds
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def gradients(
    name: str, dtype: torch.dtype, **given: Any
) -> tuple[dict[str, torch.Tensor], int]:
    """The result and the gradients of a model, with seeded random numbers; the bytes it keeps."""
    args = arguments(name, dtype)
    torch.manual_seed(6)
    jitted = jit(MODELS[name][0], strict=True, **given)
    result = jitted(*args)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(7))
    result.backward(weights.to(dtype))
    found = {"result": result.detach()} | {f"d {at}": a.grad for at, a in enumerate(args)}
    return found, recomputation_of(jitted).plan.bytes


# A GPU has short forms of functions for values that end in 16 bits.
@pytest.mark.parametrize(
    ("name", "dtype", "emulate"),
    [("mlp", "f32", False), *itertools.product(MODELS, ["bf16"], [False, True])],
)
def test_bits(name: str, dtype: str, emulate: bool) -> None:
    """Result and gradients are equal under every policy; bytes are in the order of the policies."""
    made = {
        policy: gradients(name, DTYPES[dtype], emulate=emulate, rematerialization=policy)
        for policy in (*POLICIES, *(MORE if name == "mlp" else ()))
    }
    wanted, _ = made["none"]
    for policy, (found, _) in made.items():
        for key, value in wanted.items():
            assert torch.equal(found[key], value), (policy, key)
    bytes = {policy: kept for policy, (_, kept) in made.items()}
    between = bytes.get("budget(0.5)", bytes["time"])
    assert bytes["memory"] <= between <= bytes["time"] < bytes["none"]
