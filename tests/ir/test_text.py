# SPDX-License-Identifier: Apache-2.0
"""What prints can be run: a fusion's text rebuilds the fusion, on every run the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from helpers.strategies import Case, cases
from helpers.without_torch import printed
from hypothesis import HealthCheck, given, settings

from thunder_fuser.errors import DefinitionError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.language import Recorder, read_definition, rebuild
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import definition_text, number_text
from thunder_fuser.ir.rules.build import define
from thunder_fuser.ir.rules.verify import verify


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_any_fusion_is_legal_and_rebuilt_from_its_text_or_its_definition(case: Case) -> None:
    """Types are not needed to print, nor implied casts: the records come back as they were."""
    text = str(case.fusion)
    again = rebuild(text)
    assert again == case.fusion
    assert str(again) == text
    assert dict(again.tensors) == dict(case.fusion.tensors)
    verify(case.fusion)
    again = define(case.fusion.definition)
    assert again == case.fusion
    assert again.shape_scalars == case.fusion.shape_scalars
    assert define(read_definition(definition_text(case.definition))) == case.fusion


def softmax() -> Fusion:
    fd = Recorder()
    x = fd.define_tensor([-1, 768], True, DataType.BFloat16)
    shifted = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
    y = fd.ops.truediv(shifted, fd.ops.sum(shifted, [1], True))
    fd.add_output(fd.ops.cast(y, DataType.BFloat16), stride_order=[0, 1])
    return define(fd.definition)


def layer_norm() -> Fusion:
    fd = Recorder()
    x = fd.define_tensor([-1, -1], True, DataType.BFloat16)
    weight = fd.define_tensor([-1], True, DataType.BFloat16)
    variance, mean = fd.ops.var_mean(x, [1], 0, True)
    y = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
    fd.add_output(fd.ops.cast(fd.ops.mul(y, weight), DataType.BFloat16), stride_order=[0, 1])
    rows = fd.ops.size(x, 0)
    fd.add_output(fd.ops.broadcast_in_dim(weight, [rows, fd.ops.size(weight, 0)], [1]))
    fd.add_output(fd.ops.pad(weight, [0, 1], math.inf))
    fd.add_output(x, x)
    return define(fd.definition)


def test_softmax_prints(golden: Callable[..., None]) -> None:
    golden(str(softmax()), "py")


def test_text_is_the_same_for_every_hash_seed() -> None:
    """Sets and dictionaries may order themselves by hash; nothing that prints may follow them."""
    text = str(layer_norm())
    program = "from thunder_fuser.ir.frontend.language import rebuild\n"
    program += f"print(rebuild({text!r}), end='')"
    assert [printed(program, seed=seed) for seed in ("0", "1", "4242")] == [text] * 3


@pytest.mark.parametrize(
    "number", [0, -7, 2**62, True, False, 0.1, -0.0, 1e-45, 1e300, math.inf, -math.inf, math.nan]
)
def test_numbers_come_back_to_the_bit(number: float) -> None:
    back = eval(number_text(number))
    assert type(back) is type(number)
    assert back == number or (math.isnan(back) and math.isnan(number))
    assert math.copysign(1, back) == math.copysign(1, number)


@pytest.mark.parametrize("number", [math.nan, -math.inf, -0.0, 5e-324])
def test_odd_literals_survive_the_round_trip(number: float) -> None:
    fd = Recorder()
    x = fd.define_tensor([-1], True)
    fd.add_output(fd.ops.add(x, number))
    fusion = define(fd.definition)
    assert rebuild(str(fusion)) == fusion
    assert repr(fusion.exprs[-1].inputs[1].value) == repr(number)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("fd.ops.exp(T9)", "text: T9: expected a defined value, got T9"),
        ("import os", "text: expected calls, got import os"),
        (
            "fd.execute([])",
            "text: fd.execute: expected fd.ops.<op>, fd.define_* or fd.add_output",
        ),
        (
            "os.system('true')",
            "text: os.system: expected fd.ops.<op>, fd.define_* or fd.add_output",
        ),
        (
            "fd.ops._call('true')",
            "text: fd.ops._call: expected fd.ops.<op>, fd.define_* or fd.add_output",
        ),
    ],
)
def test_text_is_interpreted_never_executed(body: str, message: str) -> None:
    with pytest.raises(DefinitionError) as error:
        rebuild(f"def fusion(fd):\n    {body}\n")
    assert str(error.value) == message


def test_text_that_is_no_function() -> None:
    with pytest.raises(DefinitionError) as error:
        rebuild("x = 1")
    assert str(error.value) == "text: expected one function, got Assign"
