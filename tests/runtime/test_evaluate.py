# SPDX-License-Identifier: Apache-2.0
"""The oracle: random fusions evaluate to the shapes and types their Fusion says, in both modes."""

from __future__ import annotations

import pytest
import torch
from helpers.strategies import Case, cases
from hypothesis import HealthCheck, given, settings

from thunder_fuser.errors import VerifyError
from thunder_fuser.ir import op_table
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.rules.build import define
from thunder_fuser.ir.strides import contiguous_strides, stride_order_of
from thunder_fuser.runtime.eager import evaluate as module
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.runtime.torch_types import from_torch_dtype

slow = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def sizes_of(fusion: Fusion, inputs: list[object]) -> dict[str, int]:
    """What the symbols of the fusion's shapes stand for in this call."""
    found: dict[str, int] = {}
    for name, value in zip(fusion.inputs, inputs, strict=True):
        if not isinstance(value, torch.Tensor):
            found[name] = int(value)
            continue
        for extent, size in zip(fusion.tensors[name].shape, value.shape, strict=True):
            found.update(dict.fromkeys(extent.symbols, size))
    return found


@slow
@given(cases())
def test_results_are_as_the_fusion_says_and_the_references_double(case: Case) -> None:
    """In shape, type and layout. The reference writes nothing."""
    inputs = case.fresh_inputs()
    reference = evaluate(case.fusion, inputs, torch.float64)
    assert len(reference) == len(case.fusion.outputs)
    for output, result in zip(case.fusion.outputs, reference, strict=True):
        assert result.dtype is torch.float64 or not case.fusion.tensors[output.name].dtype.is_float
    for before, after in zip(case.inputs, inputs, strict=True):
        if isinstance(before, torch.Tensor):
            assert torch.equal(before, after)
    results = iter(evaluate(case.fusion, inputs))
    sizes = sizes_of(case.fusion, inputs)
    targets = dict(zip(case.fusion.inputs, inputs, strict=True))
    for output in case.fusion.outputs:
        view = case.fusion.tensors[output.name]
        result = targets[output.alias] if output.alias else next(results)
        assert tuple(result.shape) == tuple(e.substitute(sizes).value for e in view.shape)
        assert from_torch_dtype(result.dtype) is view.dtype
        if output.alias is None:
            order = output.stride_order or stride_order_of(view.domain.allocation)
            assert result.stride() == contiguous_strides(result.shape, order)
    assert next(results, None) is None


@slow
@given(cases(tame=True))
def test_results_of_tame_fusions_are_near_the_reference(case: Case) -> None:
    reference = evaluate(case.fusion, case.fresh_inputs(), torch.float64)
    inputs = case.fresh_inputs()
    results = iter(evaluate(case.fusion, inputs))
    targets = dict(zip(case.fusion.inputs, inputs, strict=True))
    for output, expected in zip(case.fusion.outputs, reference, strict=True):
        result = targets[output.alias] if output.alias else next(results)
        assert isinstance(result, torch.Tensor)
        scale = expected.abs().max().item() if expected.numel() else 1.0
        torch.testing.assert_close(result.double(), expected, rtol=0.1, atol=0.1 * (1 + scale))


def one_op(name: str, *dtypes: DataType, **attrs: object) -> Fusion:
    fd = Recorder()
    tensors = [fd.define_tensor([-1], True, dtype) for dtype in dtypes]
    fd.add_output(getattr(fd.ops, name)(*tensors, **attrs))
    return define(fd.definition)


def test_an_aliased_output_is_written_and_not_returned() -> None:
    fd = Recorder()
    x = fd.define_tensor([-1], True)
    fd.add_output(fd.ops.mul(x, 2.0), x)
    fd.add_output(fd.ops.add(x, 1.0))
    values = torch.tensor([1.0, 2.0])
    (other,) = evaluate(define(fd.definition), [values])
    assert values.tolist() == [2.0, 4.0]
    assert other.tolist() == [2.0, 3.0], "computed from the input as it came"


def test_a_literal_takes_the_type_beside_it() -> None:
    (result,) = evaluate(one_op("add", DataType.Float, rhs=0.1), [torch.zeros(1)])
    assert result.item() == torch.tensor(0.1).item() != 0.1
    (exact,) = evaluate(one_op("add", DataType.Float, rhs=0.1), [torch.zeros(1)], torch.float64)
    assert exact.item() == 0.1


def test_logical_right_shift_brings_zeros_in() -> None:
    x = torch.tensor([-1, -8, 7, -1], dtype=torch.int32)
    by = torch.tensor([0, 1, 1, 31], dtype=torch.int32)
    fusion = one_op("logical_right_shift", DataType.Int32, DataType.Int32)
    (result,) = evaluate(fusion, [x, by])
    assert result.tolist() == [-1, 2**31 - 4, 3, 1]


def test_iota_of_a_small_float_counts_exactly() -> None:
    fd = Recorder()
    fd.add_output(fd.ops.iota(4096, 0, 1, DataType.Half))
    (result,) = evaluate(define(fd.definition), [])
    assert torch.equal(result, torch.arange(4096).half())


def test_a_row_of_the_wrong_type_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "exp", op_table._math("exp", torch="torch.exp(a) > 0"))
    module._code.cache_clear()
    try:
        with pytest.raises(VerifyError) as error:
            evaluate(one_op("exp", DataType.Float), [torch.zeros(1)])
    finally:
        module._code.cache_clear()
    assert str(error.value) == "T1 = exp: expected torch.float32 from torch, got torch.bool"


def test_a_reduction_over_no_axis_keeps_the_elements() -> None:
    values = torch.tensor([1.0, 2.0])
    (result,) = evaluate(one_op("sum", DataType.Float, dims=[]), [values])
    assert torch.equal(result, values)


def test_size_names_reach_shapes() -> None:
    fd = Recorder()
    x = fd.define_tensor([-1], True)
    n = fd.define_scalar(dtype=DataType.Int)
    fd.add_output(fd.ops.broadcast_in_dim(x, [n, fd.ops.size(x, 0)], [1]))
    fd.add_output(fd.ops.full([fd.ops.mul(n, 2)], 1, DataType.Int8))
    wide, ones = evaluate(define(fd.definition), [torch.arange(3.0), 2])
    assert wide.tolist() == [[0.0, 1.0, 2.0]] * 2
    assert ones.tolist() == [1] * 4
