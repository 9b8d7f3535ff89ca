# SPDX-License-Identifier: Apache-2.0
"""Samples of the rows that are torch's kernels for attention and for products of groups."""

from __future__ import annotations

import torch

from helpers.opinfo import Sample, normal
from thunder_fuser.ir.frontend.kinds import Value
from thunder_fuser.ir.frontend.language import Recorder


def _backward(fd: Recorder, grad: Value, *values: Value) -> tuple[Value, ...]:
    out, size, seed, offset = fd.ops.sdpfa_fwd(*values, is_causal=True)
    return fd.ops.sdpfa_bwd(grad, *values, out, size, None, True, seed, offset)  # type: ignore[no-any-return]


def torch_samples() -> list[Sample]:
    """All of them."""
    x, heads = normal(4, 8), [normal(1, 2, 4, 8, seed=at) for at in range(4)]
    return [
        Sample("grouped_mm", "rows", (x, normal(2, 8, 4), torch.tensor([1, 4])),
               lambda fd, a, b, ends: fd.ops.grouped_mm(a, b, ends), 16, 1e-5, False),
        Sample("sdpfa_fwd", "causal", tuple(heads[:3]),
               lambda fd, *vs: fd.ops.sdpfa_fwd(*vs, is_causal=True)[:2], 16, 1e-5),
        Sample("sdpfa_bwd", "causal", tuple(heads), _backward, 64, 1e-5),
    ]  # fmt: skip
