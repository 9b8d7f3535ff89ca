# SPDX-License-Identifier: Apache-2.0
"""A fusion: tensors, expressions over their names, inputs and outputs. Flat and frozen.

A Fusion is a typed Definition: every tensor has a type and domains. A pass rewrites the records
and defines them again, so no pass patches types. A fusion prints as the Python that makes it, and
ir/frontend/language.py reads that back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from thunder_fuser.base.threads import cached_property
from thunder_fuser.ir.domain import ParallelType, StreamAxis, TensorDomain
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import AttrValue, Definition, OpRecord, names_of, record_text
from thunder_fuser.ir.scalar import Scalar

_COMMENT_COLUMN = 72


@dataclass(frozen=True, slots=True)
class TensorView:
    """One value: a tensor, or a scalar (rank 0, passed to kernels by value)."""

    name: str
    dtype: DataType
    domain: TensorDomain
    is_scalar: bool = False
    is_cpu: bool = False
    mesh: Mesh | None = None  # the devices, each of which holds a part
    partial: tuple[tuple[ParallelType, str], ...] = ()  # where each holds a term, see placements.py
    stream: StreamAxis | None = None  # the axis that a loop over streams walks

    @property
    def shape(self) -> tuple[Scalar, ...]:
        return tuple([axis.extent for axis in self.domain.no_reductions])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents of a specialised tensor."""
        return tuple(extent.value for extent in self.shape)

    @property
    def by_value(self) -> bool:
        """True if a kernel takes the value itself instead of a pointer."""
        return self.is_scalar or (self.is_cpu and not self.shape)

    def __str__(self) -> str:
        axes = ", ".join(f"{axis.name}{{{axis.extent}}}" for axis in self.domain.logical)
        return f"{self.name}: {self.dtype.short}[{axes}]"


@dataclass(frozen=True, slots=True)
class Output:
    """A result of the fusion: its value, the requested layout, the input that it overwrites.

    apart: it has memory of its own, though its value is also written into an input.
    """

    name: str
    stride_order: tuple[int, ...] | None = None
    alias: str | None = None
    shape: tuple[int, ...] | None = None
    apart: bool | None = None


@dataclass(frozen=True)
class Fusion:
    """A typed, flat program. Fusions with equal records are equal."""

    definition: Definition
    tensors: Mapping[str, TensorView] = field(compare=False, repr=False)
    shape_scalars: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @cached_property
    def exprs(self) -> tuple[OpRecord, ...]:
        """The records that compute, in order."""
        return tuple(record for record in self.definition if record.op in OPS)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the arguments, in order."""
        defines = ("define_tensor", "define_scalar")
        arguments = [r for r in self.definition if r.op in defines and not is_found_at_run(r)]
        return tuple(r.outputs[0] for r in arguments)

    @cached_property
    def donated(self) -> frozenset[str]:
        """The arguments that results may overwrite."""
        return frozenset(r.outputs[0] for r in self.definition if r.attr("donated"))

    @cached_property
    def drawn(self) -> tuple[tuple[str, int | None], ...]:
        """(name, place) of the integers that each run draws from torch's generator, in order.

        The place is the number of the offset, or None for the seed.
        """
        draws = [r for r in self.definition if r.attr("drawn") is not None]
        offsets = count()
        return tuple(
            (r.outputs[0], next(offsets) if r.attr("drawn") == "offset" else None) for r in draws
        )

    @cached_property
    def coordinates(self) -> tuple[tuple[str, AttrValue, AttrValue], ...]:
        """Scalars with the coordinates of this device: (name, mesh, dimension of the mesh)."""
        candidates = [(r.outputs, r.attr("coordinate")) for r in self.definition]
        return tuple((n[0], at[0], at[1]) for n, at in candidates if isinstance(at, tuple))

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """The results, in order."""
        keys = ("stride_order", "alias", "shape", "apart")
        records = [record for record in self.definition if record.op == "add_output"]
        return tuple(Output(*r.inputs, *map(r.attr, keys)) for r in records)  # type: ignore[arg-type]

    @cached_property
    def results(self) -> frozenset[str]:
        """The names of the values that are results."""
        return frozenset(output.name for output in self.outputs)

    def memory_of(self, output: Output) -> str | None:
        """The overwritten input that is returned for a result, if any; as in nvFuser.

        add_output(T1, T0); add_output(T1)  ->  T0, and so for add_output(T0)
        """
        if output.alias or output.stride_order or output.shape is not None or output.apart:
            return None
        written = {other.name: other.alias for other in self.outputs if other.alias}
        return output.name if output.name in written.values() else written.get(output.name)

    @cached_property
    def producer(self) -> Mapping[str, OpRecord]:
        """The expression that makes each computed value."""
        return {name: expr for expr in self.exprs for name in expr.outputs}

    @cached_property
    def uses(self) -> Mapping[str, tuple[OpRecord, ...]]:
        """The expressions that read each value, in order."""
        readers: dict[str, list[OpRecord]] = {name: [] for name in self.tensors}
        for expr in self.exprs:
            for name in dict.fromkeys(names_of(expr)):
                readers[name].append(expr)
        return {name: tuple(exprs) for name, exprs in readers.items()}

    def __str__(self) -> str:
        """A Python function of a FusionDefinition, with the types in trailing comments."""
        lines = ["def fusion(fd):"]
        for record in self.definition:
            code = "    " + record_text(record)
            if record.outputs:
                views = (self.tensors[name] for name in record.outputs)
                types = ", ".join(str(view).partition(": ")[2] for view in views)
                code = f"{code:<{_COMMENT_COLUMN}}  # {types}"
            lines.append(code)
        return "\n".join(lines) + "\n"


def is_found_at_run(record: OpRecord) -> bool:
    """True for a scalar that is no argument: a drawn one, or a coordinate of this device."""
    return record.attr("drawn") is not None or record.attr("coordinate") is not None
