# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks sanitize`: each place that a row can be kept in has a kernel."""

from __future__ import annotations

import pytest
import torch

from benchmarks.kernels.operation import make_definition, make_inputs
from benchmarks.kernels.points import OPERATIONS
from benchmarks.sanitize import LIMIT, Run, error_of, runs, target_with
from thunder_fuser.options import in_force
from thunder_fuser.target import EMULATOR

CPU = torch.device("cpu")
# A pair of each: one with a row of whole vectors, one with an odd row.
CHOSEN = [one for one in runs() if one.op == "softmax" and one.dtype is torch.bfloat16]


@pytest.mark.parametrize("one", CHOSEN, ids=str)
def test_rows_are_where_they_should_be(one: Run) -> None:
    inputs = make_inputs(OPERATIONS[one.op], one.shape, one.dtype, CPU)
    registers = {} if one.memory == "registers" else {"max_registers_bytes": 0}
    with in_force(registers):
        fd = make_definition(OPERATIONS[one.op], one.shape, inputs)
        (segment,) = fd.plan(inputs, target=target_with(EMULATOR, one.memory)).segments
    assert segment.params.memory == one.memory
    assert error_of(one, CPU, EMULATOR) <= LIMIT[one.dtype]
