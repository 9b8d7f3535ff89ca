# SPDX-License-Identifier: Apache-2.0
"""Logical sizes <-> sizes in memory, through the transforms of the allocation domain.

logical [i0{6}] --split 2--> [i0.o{3}, i0.i{2}] --reorder, merge--> allocation [i0.i*i0.o{6}]

    (6,)  ->  (6,)
    (6,)  <-  (6,): the inner axis has 2, so the outer one has 3, and 3 * 2 = 6

Sizes are Scalars: symbols or numbers. After a split that does not divide, some places in memory
hold no element, and the logical size does not follow from memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.errors import InputError
from thunder_fuser.ir.domain import Domain, Merge, Split, TensorDomain, merged_name
from thunder_fuser.ir.scalar import Scalar, ScalarLike, ceil_div, const, wrap


def allocation_sizes(domain: TensorDomain, logical: Sequence[ScalarLike]) -> tuple[Scalar, ...]:
    """The sizes in memory order of a tensor with these logical sizes.

    [i0{31}] split 8, of 31  ->  (4, 8)
    """
    known = _forward(domain, logical)
    return tuple(known[axis.name] for axis in domain.memory)


def _forward(domain: TensorDomain, logical: Sequence[ScalarLike]) -> dict[str, Scalar]:
    """The size of every axis that the transforms make, by name."""
    known = _named(domain.no_reductions, [wrap(size) for size in logical])
    for transform in domain.transforms:
        if isinstance(transform, Split):
            factor = const(transform.factor)
            parts = (ceil_div(known[transform.axis], factor), factor)
            parts = parts if transform.inner else parts[::-1]
            known[transform.axis + ".o"], known[transform.axis + ".i"] = parts
        elif isinstance(transform, Merge):
            sides = known[transform.outer], known[transform.inner]
            known[merged_name(transform.outer, transform.inner)] = sides[0] * sides[1]
    return known


def _named(domain: Domain, values: Sequence[Scalar]) -> dict[str, Scalar]:
    return {axis.name: value for axis, value in zip(domain, values, strict=True)}


# ------------------------------------------------------------------------- memory -> logical sizes


def logical_sizes(
    domain: TensorDomain, memory: Sequence[ScalarLike], what: str = "the tensor"
) -> tuple[Scalar, ...]:
    """The logical sizes of a tensor with these sizes in memory; the inverse of `allocation_sizes`.

    Raises InputError, with the axis, both sizes and the rule, if no logical sizes fit or if
    several do.
    """
    known = _static(domain)
    for axis, size in zip(domain.memory, memory, strict=True):
        _learn(known, axis.name, wrap(size), domain, what)
    for transform in reversed(domain.transforms):
        if isinstance(transform, Split):
            # No remainder, unless the size is known.
            parts = known[transform.axis + ".o"], known[transform.axis + ".i"]
            known.setdefault(transform.axis, parts[0] * parts[1])
        elif isinstance(transform, Merge):
            _unmerge(known, transform, what)
    sizes = tuple(known[axis.name] for axis in domain.no_reductions)
    again = allocation_sizes(domain, sizes)
    for axis, size, given in zip(domain.memory, again, map(wrap, memory), strict=True):
        if _differ(size, given):
            raise _mismatch(domain, axis.name, size, given, what)
    return sizes


def _static(domain: TensorDomain) -> dict[str, Scalar]:
    """The sizes that the domain alone determines: constant extents and factors of splits."""
    known = {a.name: a.extent for a in domain.no_reductions if a.extent.is_const}
    for transform in domain.transforms:
        if isinstance(transform, Split):
            whole, factor = known.get(transform.axis), const(transform.factor)
            mine, other = (".i", ".o") if transform.inner else (".o", ".i")
            known[transform.axis + mine] = factor
            if whole is not None:
                known[transform.axis + other] = ceil_div(whole, factor)
        elif isinstance(transform, Merge):
            sides = known.get(transform.outer), known.get(transform.inner)
            if sides[0] is not None and sides[1] is not None:
                known[merged_name(transform.outer, transform.inner)] = sides[0] * sides[1]
    return known


def _learn(
    known: dict[str, Scalar], name: str, size: Scalar, domain: TensorDomain, what: str
) -> None:
    """Adds a size. Raises InputError if it contradicts a known one."""
    if name in known and _differ(known[name], size):
        raise _mismatch(domain, name, known[name], size, what)
    known.setdefault(name, size)


def _differ(a: Scalar, b: Scalar) -> bool:
    return a.is_const and b.is_const and a is not b


def _unmerge(known: dict[str, Scalar], merge: Merge, what: str) -> None:
    """Size of outer*inner, size of one side -> size of the other side."""
    whole = known[merged_name(merge.outer, merge.inner)]
    for side, other in ((merge.outer, merge.inner), (merge.inner, merge.outer)):
        if side in known or other not in known:
            continue
        factor = known[other]
        if whole.is_const and factor.is_const and (factor.value == 0 or whole.value % factor.value):
            raise InputError(
                f"{what}: axis {merged_name(merge.outer, merge.inner)} of the allocation",
                expected=f"a multiple of {factor}, the size of {other}: a split must divide",
                got=f"size {whole}",
                do="give the logical shape beside the storage",
            )
        known[side] = whole // factor
    if merge.outer not in known or merge.inner not in known:
        raise InputError(
            f"{what}: axis {merged_name(merge.outer, merge.inner)} of the allocation",
            expected=f"the size of {merge.outer} or of {merge.inner}, to determine the other",
            got=f"size {whole} alone",
            do="give the logical shape beside the storage",
        )


def _mismatch(
    domain: TensorDomain, name: str, wanted: Scalar, got: Scalar, what: str
) -> InputError:
    memory = ", ".join(str(axis) for axis in domain.memory)
    return InputError(
        f"{what}: axis {name}", expected=f"size {wanted} in the allocation domain [{memory}]",
        got=f"size {got}",
    )  # fmt: skip
