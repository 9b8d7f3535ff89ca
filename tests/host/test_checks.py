# SPDX-License-Identifier: Apache-2.0
"""Checks of tensors: C and Python agree on each pair of what was wanted and what came."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thunder_fuser.host.call.native import Check, Like, make_check, native
from thunder_fuser.options import options


class Own(torch.Tensor):
    pass


PLAIN = {
    "vector": torch.ones(4),
    "row": torch.ones(1, 4),
    "scalar": torch.ones(()),
    "none in it": torch.empty(0, 4),
    "longer": torch.ones(5),
    "half": torch.ones(4, dtype=torch.float16),
    "bfloat16": torch.ones(4, dtype=torch.bfloat16),
    "bool": torch.ones(4, dtype=torch.bool),
    "complex": torch.ones(4, dtype=torch.complex64),
    "float8": torch.ones(4).to(torch.float8_e4m3fn),
    "with gradient": torch.ones(4, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.ones(4)),
    "not a leaf": torch.ones(4, requires_grad=True) * 1,
    "frozen": torch.nn.Parameter(torch.ones(4), requires_grad=False),
    "meta": torch.ones(4, device="meta"),
    "strided": torch.ones(8)[::2],
    "conjugated": torch.ones(4, dtype=torch.complex64).conj(),
}
OTHER = {
    "subclass": torch.ones(4).as_subclass(Own),
    "sparse": torch.ones(4).to_sparse(),
    "list": [1.0] * 4,
    "none": None,
    "number": 1.0,
}


def like(tensor: torch.Tensor) -> Like:
    return Like(tuple(tensor.shape), tensor.dtype, tensor.device, tensor.requires_grad)


def check_of(*wanted: Like, in_c: bool) -> Check:
    with options(native_calls=in_c):
        return make_check(wanted)


@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize("name", PLAIN)
def test_a_tensor_is_like_those_with_the_same_type(name: str, in_c: bool) -> None:
    check = check_of(wanted := like(PLAIN[name]), in_c=in_c)
    values: dict[str, Any] = {**PLAIN, **OTHER}
    found = {other for other, value in values.items() if check(value)}
    assert found == {other for other, value in PLAIN.items() if like(value) == wanted}


@pytest.mark.parametrize("in_c", [True, False])
def test_each_of_several_counts(in_c: bool) -> None:
    tensors = [PLAIN["vector"], PLAIN["row"], PLAIN["half"], PLAIN["scalar"]]
    check = check_of(*map(like, tensors), in_c=in_c)
    assert check(*tensors)
    for at in range(len(tensors)):
        assert not check(*tensors[:at], PLAIN["longer"], *tensors[at + 1 :])
    assert not check(*tensors[:3])
    assert not check(*tensors, tensors[0])
    assert check_of(in_c=in_c)()


@pytest.mark.parametrize("in_c", [True, False])
def test_inside_a_transform(in_c: bool) -> None:
    check, seen = check_of(like(torch.ones(4)), in_c=in_c), []

    def called(x: torch.Tensor) -> torch.Tensor:
        seen.append(check(x))
        return x.sum()

    torch.func.vmap(called)(torch.ones(2, 4))
    torch.func.grad(called)(torch.ones(4))
    assert seen == [False, False]


@pytest.mark.skipif(native() is None, reason="there is no compiler")
def test_c_checks_where_there_is_a_compiler() -> None:
    assert type(check_of(like(torch.ones(4)), in_c=True)).__name__ == "Check"
