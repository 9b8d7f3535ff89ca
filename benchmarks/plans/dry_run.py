# SPDX-License-Identifier: Apache-2.0
"""A torch function and its arguments -> the regions of its forward and backward, as fusions.

The regions run their torch ops: nothing is compiled, so a plan for an H200 needs no H200.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import thunder
import torch
from thunder.extend import register_executor

from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.errors import ToolchainError
from thunder_fuser.executors.fuser import ThunderFuser
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Definition
from thunder_fuser.presegment.specialise import InputKey


@dataclass(frozen=True, slots=True)
class TracedRegion:
    """A region of a direction, forward or backward, and what it was called with."""

    direction: str
    fusion: Fusion
    keys: tuple[InputKey, ...]


_found: list[TracedRegion] = []
_direction = ["forward"]


def _note(definition: Definition, name: str, args: Sequence[Any]) -> Any:
    fusion = FusionCache.get().look_up(definition).fusion
    _found.append(TracedRegion(_direction[0], fusion, input_keys(fusion, tuple(args))))
    raise ToolchainError(name, expected="torch's ops", got="a run that only plans")


@cache
def _noting() -> ThunderFuser:
    executor = ThunderFuser("thunder_fuser_plans", _note)
    register_executor(executor)
    return executor


def regions(function: Callable[..., Any], arguments: Sequence[Any]) -> list[TracedRegion]:
    """The regions of a call and of its backward, in the order they run."""
    _found.clear()
    _direction[0] = "forward"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = thunder.jit(function, executors=[_noting()])(*arguments)
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        graded = [one for one in results if one.requires_grad]
        if graded:
            _direction[0] = "backward"
            torch.autograd.backward(graded, [torch.ones_like(one) for one in graded])
    return list(_found)
