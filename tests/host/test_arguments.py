# SPDX-License-Identifier: Apache-2.0
"""Whether a tensor fits what a definition says of its memory."""

from __future__ import annotations

import pytest
import torch

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.errors import InputError
from thunder_fuser.host.call.arguments import check_bound
from thunder_fuser.ir.fusion import TensorView

CASES: dict[str, tuple[list[bool | None], tuple[int, int], tuple[int, int], str]] = {
    "rows": ([True, True], (2, 4), (4, 1), ""),
    "rows with gaps": ([False, True], (2, 4), (8, 1), ""),
    "gaps between rows": ([True, True], (2, 4), (8, 1), "axis 0: expected stride 4"),
    "gaps in a row": ([False, True], (2, 4), (8, 2), "axis 1: expected stride 1"),
    "one row with any stride": ([True, True], (1, 4), (9, 1), ""),
    "no elements": ([True, True], (0, 4), (9, 9), ""),
    "an expanded axis": ([True, None], (2, 4), (1, 0), ""),
    "rows of an expanded axis": ([None, True], (2, 4), (0, 1), ""),
    "gaps beside an expanded axis": ([True, None], (2, 4), (3, 0), "axis 0: expected stride 1"),
}


def view(contiguity: list[bool | None]) -> TensorView:
    """A matrix of any sizes."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=contiguity, dtype=DataType.Float)
        fd.add_output(fd.ops.neg(x))
    return fd.fusion.tensors[fd.fusion.inputs[0]]


@pytest.mark.parametrize("name", CASES)
def test_contiguity(name: str) -> None:
    contiguity, sizes, strides, error = CASES[name]
    value = torch.empty(100).as_strided(sizes, strides)
    if not error:
        check_bound(view(contiguity), value)
        return
    with pytest.raises(InputError, match=error):
        check_bound(view(contiguity), value)
