# SPDX-License-Identifier: Apache-2.0
"""Logical sizes <-> sizes in memory, through the transforms of the allocation domain.

logical [i0{6}] --split 2--> [i0.o{3}, i0.i{2}] --reorder, merge--> allocation [i0.i*i0.o{6}]

    (6,)  ->  (6,)
    (6,)  <-  (6,): the inner axis has 2, so the outer one has 3, and 3 * 2 = 6

Sizes are Scalars: symbols or numbers. After a split that does not divide, some places in memory
hold no element, and the logical size does not follow from memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from thunder_fuser.errors import InputError
from thunder_fuser.ir.domain import Domain, Merge, Split, TensorDomain, merged_name
from thunder_fuser.ir.scalar import Scalar, ScalarLike, ceil_div, const, wrap


def allocation_sizes(domain: TensorDomain, logical: Sequence[ScalarLike]) -> tuple[Scalar, ...]:
    """The sizes in memory order of a tensor with these logical sizes.

    [i0{31}] split 8, of 31  ->  (4, 8)
    """
    known = axis_sizes(domain, _named(domain.no_reductions, map(wrap, logical)))
    return tuple(known[axis.name] for axis in domain.memory)


def axis_sizes(domain: TensorDomain, logical: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The sizes of logical axes and of those that the transforms make of them, by name.

    Axes whose size does not follow are left out; a factor of a split is always known.
    """
    known = dict(logical)
    for transform in domain.transforms:
        if isinstance(transform, Split):
            factor = const(transform.factor)
            mine, other = (".i", ".o") if transform.inner else (".o", ".i")
            known[transform.axis + mine] = factor
            if transform.axis in known:
                known[transform.axis + other] = ceil_div(known[transform.axis], factor)
        elif isinstance(transform, Merge) and {transform.outer, transform.inner} <= known.keys():
            name = merged_name(transform.outer, transform.inner)
            known[name] = known[transform.outer] * known[transform.inner]
    return known


def _named(domain: Domain, values: Iterable[Scalar]) -> dict[str, Scalar]:
    return {axis.name: value for axis, value in zip(domain, values, strict=True)}


def logical_sizes(
    domain: TensorDomain, memory: Sequence[ScalarLike], what: str = "the tensor"
) -> tuple[Scalar, ...]:
    """The logical sizes of a tensor with these sizes in memory; the inverse of `allocation_sizes`.

    Raises InputError, with the axis, both sizes and the rule, if no logical sizes fit or if
    several do.
    """
    static = {a.name: a.extent for a in domain.no_reductions if a.extent.is_const}
    known = axis_sizes(domain, static)
    memory_sizes = _named(domain.memory, map(wrap, memory))
    for name, size in memory_sizes.items():
        _check_equal(domain, name, known.setdefault(name, size), size, what)
    for transform in reversed(domain.transforms):
        if isinstance(transform, Split):
            # No remainder, unless the size is known.
            parts = known[transform.axis + ".o"], known[transform.axis + ".i"]
            known.setdefault(transform.axis, parts[0] * parts[1])
        elif isinstance(transform, Merge):
            _unmerge(known, transform, what)
    sizes = tuple(known[axis.name] for axis in domain.no_reductions)
    again = allocation_sizes(domain, sizes)
    for (name, size), wanted in zip(memory_sizes.items(), again, strict=True):
        _check_equal(domain, name, wanted, size, what)
    return sizes


def _check_equal(domain: TensorDomain, name: str, wanted: Scalar, got: Scalar, what: str) -> None:
    """InputError if two sizes of an axis certainly differ."""
    if wanted.is_const and got.is_const and wanted is not got:
        memory = ", ".join(str(axis) for axis in domain.memory)
        expected = f"size {wanted} in the allocation domain [{memory}]"
        raise InputError(f"{what}: axis {name}", expected=expected, got=f"size {got}")


def _unmerge(known: dict[str, Scalar], merge: Merge, what: str) -> None:
    """Size of outer*inner, size of one side -> size of the other side."""
    name = merged_name(merge.outer, merge.inner)
    whole, thing = known[name], f"{what}: axis {name} of the allocation"
    do = "give the logical shape beside the storage"
    for side, other in ((merge.outer, merge.inner), (merge.inner, merge.outer)):
        factor = known.get(other)
        if side in known or factor is None:
            continue
        if whole.is_const and factor.is_const and (factor.value == 0 or whole.value % factor.value):
            expected = f"a multiple of {factor}, the size of {other}: a split must divide"
            raise InputError(thing, expected=expected, got=f"size {whole}", do=do)
        known[side] = whole // factor
    if not {merge.outer, merge.inner} <= known.keys():
        expected = f"the size of {merge.outer} or of {merge.inner}, to determine the other"
        raise InputError(thing, expected=expected, got=f"size {whole} alone", do=do)
