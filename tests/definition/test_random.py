# SPDX-License-Identifier: Apache-2.0
"""Random fusions through the whole path, on each target, against torch op by op."""

from __future__ import annotations

import pytest
import torch
from helpers.cases import poisoned
from helpers.random_rows import rows_case
from helpers.strategies import Case, cases
from hypothesis import HealthCheck, Phase, given, settings

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.options import options
from thunder_fuser.runtime.eager.evaluate import evaluate

TARGETS = pytest.mark.parametrize("target", ["cpu", "emulator"])

# Each example compiles; the same ones on every run, so that a failure is one of the change at hand.
# Shrinking would compile hundreds more; the failing case is printed as it is.
few = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@TARGETS
@few
@given(case=cases(tame=True, most_ops=8))
def test_kernels_of_any_fusion(target: str, case: Case) -> None:
    check(case, target)


@TARGETS
@pytest.mark.parametrize("seed", range(10))
def test_kernels_over_long_rows(target: str, seed: int) -> None:
    case = rows_case(seed)
    print(case)
    # Odd seeds leave no registers to persistent buffers: shared memory, or a second pass.
    with options(max_registers_bytes=0 if seed % 2 else 128, emulate_reversed=seed % 4 > 1):
        check(case, target)


def check(case: Case, target: str) -> None:
    """Results and inputs as torch leaves them, in the same layouts."""
    fd = FusionDefinition()
    for record in case.definition:
        fd.record(record)
    ours, theirs = case.fresh_inputs(), case.fresh_inputs()
    with poisoned():
        results = fd.execute(ours, target=target)
    expected = evaluate(case.fusion, theirs)
    assert [r.stride() for r in results] == [e.stride() for e in expected]
    # Inputs are compared too: aliased outputs are written into them, and nothing else is.
    written = [x for x in ours if isinstance(x, torch.Tensor)]
    meant = [x for x in theirs if isinstance(x, torch.Tensor)]
    for result, value in zip([*results, *written], [*expected, *meant], strict=True):
        near = 3e-2 if value.dtype.itemsize == 2 else 1e-4
        torch.testing.assert_close(result, value, rtol=near, atol=near, equal_nan=True)
