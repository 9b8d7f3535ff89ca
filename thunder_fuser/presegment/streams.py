# SPDX-License-Identifier: Apache-2.0
"""Axes over streams become attributes of the products that walk them; see ir/streams.py.

    T2 = matmul(T0, T1); T2.split(0, 4, False); T2.parallelize(0, "stream")
->  T2 = matmul(T0, T1, streams=[0, 4]); ...
"""

from __future__ import annotations

from thunder_fuser.ir.build import define
from thunder_fuser.ir.domain import StreamAxis
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.streams import products_in_streams
from thunder_fuser.presegment.rewrite import with_attrs


def in_streams(fusion: Fusion) -> Fusion:
    """The fusion, specialised, with such attributes."""
    found = products_in_streams(fusion.definition, fusion.tensors)
    if not found:
        return fusion
    return define(tuple(
        with_attrs(record, streams=_attribute(found[record.outputs[0]]))
        if record.outputs and record.outputs[0] in found else record
        for record in fusion.definition
    ))  # fmt: skip


def _attribute(stream: StreamAxis) -> tuple[int, ...]:
    devices = stream.devices
    return (stream.axis, stream.pieces * devices, *([devices] * (devices > 1)))
