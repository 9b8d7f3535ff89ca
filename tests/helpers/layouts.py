# SPDX-License-Identifier: Apache-2.0
"""Seed -> chains of split, merge and reorder, as calls on a tensor; what they mean, in torch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod

import torch

from thunder_fuser.ir.frontend.values import Tensor

Call = tuple[str, tuple[object, ...]]
MOST_ELEMENTS = 96


def random_shape(chance: random.Random) -> list[int]:
    """One to three axes, some of them 1."""
    while True:
        shape = [chance.choice([1, 2, 3, 4, 5, 6, 7, 8, 12]) for _ in range(chance.randint(1, 3))]
        if prod(shape) <= MOST_ELEMENTS:
            return shape


def random_chain(chance: random.Random, shape: Sequence[int], uneven: bool = False) -> list[Call]:
    """Up to five calls, then set_allocation_domain; splits divide unless `uneven`."""
    sizes, calls = list(shape), []
    for _ in range(chance.randint(0, 5)):
        kind = chance.choice(["split", "split", "merge", "reorder"])
        at = chance.randrange(len(sizes))
        if kind == "split" and len(sizes) < 5:
            inner = chance.random() < 0.5
            factors = range(1, sizes[at] + 2)
            fits = [f for f in factors if uneven or sizes[at] % f == 0]
            factor = chance.choice(fits)
            other = -(-sizes[at] // factor)
            calls.append(("split", (at, factor, inner)))
            sizes[at : at + 1] = [other, factor] if inner else [factor, other]
        elif kind == "merge" and at + 1 < len(sizes):
            calls.append(("merge", (at,)))
            sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
        elif kind == "reorder":
            order = chance.sample(range(len(sizes)), len(sizes))
            calls.append(("reorder", (order,)))
            sizes = [sizes[old] for old in order]
    order = chance.sample(range(len(sizes)), len(sizes))
    return [*calls, ("set_allocation_domain", (order,))]


def lay_out(tensor: Tensor, calls: Sequence[Call]) -> None:
    for name, args in calls:
        getattr(tensor, name)(*args)


def stored(logical: torch.Tensor, calls: Sequence[Call]) -> torch.Tensor:
    """The storage of a tensor, by torch's views alone; places without an element hold 0."""
    for name, args in calls:
        if name == "split":
            at, factor, inner = args
            other = -(-logical.shape[at] // factor)
            missing = other * factor - logical.shape[at]
            logical = torch.cat(
                [logical, logical.new_zeros([missing if a == at else n for a, n in
                                             enumerate(logical.shape)])], at
            )
            logical = logical.unflatten(at, (other, factor) if inner else (factor, other))
        elif name == "merge":
            logical = logical.flatten(args[0], args[0] + 1)
        else:
            logical = logical.permute(args[0])
    return logical.contiguous()


def is_permutation(calls: Sequence[Call]) -> bool:
    """True where strides can say it: the argument is then an ordinary tensor."""
    return len(calls) == 1
