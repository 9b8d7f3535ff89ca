# SPDX-License-Identifier: Apache-2.0
"""A segment has one text, whatever fusion it stands in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import graphs
from helpers.graphs import Graph
from helpers.strategies import Case, cases
from hypothesis import HealthCheck, Phase, given, settings

from thunder_fuser.analysis.part import Parts
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.compiler import emit, plan_segments, schedule
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.record import Definition, rename
from thunder_fuser.ir.rules.build import define
from thunder_fuser.options import compile_options
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.segment.canonical import canonical
from thunder_fuser.target import CPU, H200, Target

AROUND = 7  # so that T9 of one fusion is T16 of the other, whose names sort in another order
TARGETS = pytest.mark.parametrize("target", [CPU, H200], ids=lambda target: target.name)

GRAPHS: dict[str, Graph] = {
    "biased": graphs.biased(64, 96),
    "softmax": graphs.softmax(64, 4096, dtype=DataType.BFloat16),
    "layer_norm": graphs.layer_norm(64, 1024),
    "summed": graphs.summed(64, 48, 80, dims=[0, 2]),
    "scanned": graphs.scanned(8, 4, 300, dim=2),
    "scanned columns": graphs.scanned(8, 300, 4, dim=1),
    "transposed": graphs.transposed(64, 96),
    "turned": graphs.turned(1024, 512, dtype=DataType.BFloat16),
}


def around(definition: Definition, *, used: bool) -> tuple[Definition, list[torch.Tensor]]:
    """The same definition after inputs of another one, and what that makes of them if `used`."""
    fd = Recorder()
    for _ in range(AROUND):
        x = fd.define_tensor([-1], [True])
        if used:
            fd.add_output(fd.ops.neg(x))
    return (*_renamed(fd.definition), *definition), [graphs.meta(11)] * AROUND


def _renamed(definition: Definition) -> Definition:
    """Under names that the other definition does not use."""
    names = {n: f"X{n}" for record in definition for n in record.outputs}
    return tuple(
        replace(rename(r, names), outputs=tuple(names[n] for n in r.outputs)) for r in definition
    )


def sources(
    definition: Definition, inputs: list[Any], target: Target
) -> dict[str, KernelSource]:
    """The kernels of a definition by their texts."""
    fusion = define(definition)
    keys = input_keys(fusion, tuple(inputs))
    alignment = {name: key.alignment for name, key in zip(fusion.inputs, keys, strict=True)}
    planned = plan_segments(fusion, keys, target, compile_options())
    made = [emit(schedule(one, alignment)) for one in planned.segments]
    return {source.text: source for source in made if source is not None}


def assert_same_texts(
    definition: Definition, inputs: list[Any], target: Target, *, used: bool
) -> None:
    ours = sources(definition, inputs, target)
    longer, more = around(definition, used=used)
    theirs = sources(longer, [*more, *inputs], target)
    assert set(ours) <= set(theirs)
    assert len(theirs) == len(ours) + used  # the other segments are one kernel AROUND times
    for text, source in ours.items():
        assert source == theirs[text]


@TARGETS
@pytest.mark.parametrize("name", GRAPHS)
def test_other_names_give_the_same_text(name: str, target: Target) -> None:
    fd, inputs = GRAPHS[name]
    assert_same_texts(fd.records, inputs, target, used=True)


@TARGETS
@settings(
    max_examples=30, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(case=cases(most_ops=8))
def test_of_any_fusion(target: Target, case: Case) -> None:
    """Beside inputs that nothing reads, so that it is cut in the same way."""
    assert_same_texts(case.definition, list(case.inputs), target, used=False)


def test_names_are_positions() -> None:
    fd, inputs = graphs.layer_norm(64, 1024)
    longer, more = around(fd.records, used=True)
    for definition, arguments in ((fd.records, inputs), (longer, [*more, *inputs])):
        fusion = specialise(define(definition), input_keys(define(definition), tuple(arguments)))
        part = Parts(fusion).of(fusion.exprs[AROUND if len(arguments) > AROUND else 0 :])
        made, names = canonical(part)
        assert [names[n] for n in part.inputs] == list(made.inputs) == ["T0", "T1", "T2"]
        assert [n[1:] for e in made.exprs for n in e.outputs] == [
            str(at) for at in range(3, len(made.tensors))
        ]
        assert {a for v in made.tensors for a in made.axes(v)} == {"i0", "i1"}
        assert canonical(made)[0] == made  # its own canonical form
        assert {n: made.strides[names[n]] for n in names} == {n: part.strides[n] for n in names}
