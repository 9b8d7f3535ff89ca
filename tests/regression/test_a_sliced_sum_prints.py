# SPDX-License-Identifier: Apache-2.0
"""The schedule of a sum over a slice has a text: what is sliced has an axis that no loop walks."""

from __future__ import annotations

from helpers.graphs import meta, rows
from helpers.kernels import scheduled

from thunder_fuser.target import CPU


def test_a_sliced_sum_prints() -> None:
    fd, x = rows(100, 300)
    fd.add_output(fd.ops.sum(fd.ops.slice(fd.ops.exp(x), [0, 0], [64, 300]), [0]))
    made, _ = scheduled((fd, [meta(100, 300)]), CPU)
    assert "# T1   loop[i1.o{2}@blockIdx.x, i1.i{256}@vectorize, i0{100}]" in str(made)
