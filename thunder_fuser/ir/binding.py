# SPDX-License-Identifier: Apache-2.0
"""Logical <-> allocation: sizes, indices and strides, both ways, through the transforms.

logical [i0{6}] --split 2--> [i0.o{3}, i0.i{2}] --reorder, merge--> allocation [i0.i*i0.o{6}]

    sizes    (6,)    ->  (6,)        and back: 6 in memory, of which 2 are inner: 3 * 2 = 6
    index    i       ->  3 * (i % 2) + i // 2
             k       <-  2 * (k % 3) + k // 3

Sizes and indices are Scalars, so all of it holds for symbols as for numbers. A split that does not
divide leaves places in memory that no element has; its logical size cannot be told from memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunder_fuser.errors import InputError
from thunder_fuser.ir.domain import Domain, Merge, Split, TensorDomain, merged_name
from thunder_fuser.ir.scalar import Scalar, ScalarLike, ceil_div, const, wrap

Index = tuple[Scalar, ...]
Strides = tuple[int | None, ...]


def allocation_sizes(domain: TensorDomain, logical: Sequence[ScalarLike]) -> tuple[Scalar, ...]:
    """The sizes in memory order of a tensor of these logical sizes.

    [i0{31}] split 8, of 31  ->  (4, 8)
    """
    known = _forward(domain, logical)
    return tuple(known[axis.name] for axis in domain.memory)


def _forward(domain: TensorDomain, logical: Sequence[ScalarLike]) -> dict[str, Scalar]:
    """The size of every axis on the way from logical to allocation."""
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

    Extents that the domain knows are kept. Raises InputError with the axis, both sizes and the rule
    where the sizes in memory fit none, or leave one open.
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
    """Sizes that follow from the domain alone: constant extents, and factors of splits."""
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
    """Notes a size, which must agree with what is known."""
    if name in known and _differ(known[name], size):
        raise _mismatch(domain, name, known[name], size, what)
    known.setdefault(name, size)


def _differ(a: Scalar, b: Scalar) -> bool:
    return a.is_const and b.is_const and a is not b


def _unmerge(known: dict[str, Scalar], merge: Merge, what: str) -> None:
    """outer*inner of a known size -> the side that is not known, by the one that is."""
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
            expected=f"the size of {merge.outer} or of {merge.inner}, to tell it apart",
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


# ------------------------------------------------------------------------------------------ indices


def allocation_index(
    domain: TensorDomain, sizes: Sequence[ScalarLike], index: Sequence[Scalar]
) -> Index:
    """Where in memory a logical index lies, in memory order. sizes: logical."""
    extents, at = _forward(domain, sizes), _named(domain.no_reductions, index)
    for transform in domain.transforms:
        if isinstance(transform, Split):
            inner = extents[transform.axis + ".i"]
            whole = at[transform.axis]
            at[transform.axis + ".o"], at[transform.axis + ".i"] = whole // inner, whole % inner
        elif isinstance(transform, Merge):
            inner = extents[transform.inner]
            name = merged_name(transform.outer, transform.inner)
            at[name] = at[transform.outer] * inner + at[transform.inner]
    return tuple(at[axis.name] for axis in domain.memory)


def logical_index(
    domain: TensorDomain, sizes: Sequence[ScalarLike], index: Sequence[Scalar]
) -> Index:
    """The logical index at a place in memory; past the end where no element lies there."""
    extents, at = _forward(domain, sizes), _named(domain.memory, index)
    for transform in reversed(domain.transforms):
        if isinstance(transform, Split):
            inner = extents[transform.axis + ".i"]
            at[transform.axis] = at[transform.axis + ".o"] * inner + at[transform.axis + ".i"]
        elif isinstance(transform, Merge):
            whole = at[merged_name(transform.outer, transform.inner)]
            inner = extents[transform.inner]
            at[transform.outer], at[transform.inner] = whole // inner, whole % inner
    return tuple(at[axis.name] for axis in domain.no_reductions)


# ------------------------------------------------------------------------------------------ strides


def allocation_strides(
    domain: TensorDomain, sizes: Sequence[int], strides: Sequence[int]
) -> Strides:
    """The strides in memory order of a tensor of these logical sizes and strides.

    None for an axis that steps unevenly: a merge of two axes with a gap between them.
    """
    extents = _forward(domain, sizes)
    steps: dict[str, int | None] = dict(
        zip([a.name for a in domain.no_reductions], strides, strict=True)
    )
    for transform in domain.transforms:
        if isinstance(transform, Split):
            step = steps[transform.axis]
            inner = extents[transform.axis + ".i"].value
            steps[transform.axis + ".o"] = None if step is None else step * inner
            steps[transform.axis + ".i"] = step
        elif isinstance(transform, Merge):
            name = merged_name(transform.outer, transform.inner)
            steps[name] = _joined_step(transform.outer, transform.inner, steps, extents)
    return tuple(steps[axis.name] for axis in domain.memory)


def logical_strides(
    domain: TensorDomain, sizes: Sequence[int], strides: Sequence[int]
) -> Strides:
    """The strides of the logical tensor in a storage with these strides, in memory order.

    None for an axis whose elements no stride reaches: the storage is then no torch view of it.
    """
    extents = _forward(domain, sizes)
    steps: dict[str, int | None] = dict(zip([a.name for a in domain.memory], strides, strict=True))
    for transform in reversed(domain.transforms):
        if isinstance(transform, Split):
            outer, inner = transform.axis + ".o", transform.axis + ".i"
            steps[transform.axis] = _joined_step(outer, inner, steps, extents)
        elif isinstance(transform, Merge):
            step = steps[merged_name(transform.outer, transform.inner)]
            inner_size = extents[transform.inner].value
            steps[transform.outer] = None if step is None else step * inner_size
            steps[transform.inner] = step
    return tuple(steps[axis.name] for axis in domain.no_reductions)


def _joined_step(
    outer: str, inner: str, steps: Mapping[str, int | None], extents: Mapping[str, Scalar]
) -> int | None:
    """The one step of two axes walked as one; an axis of size 1 has any."""
    a, b, size = steps[outer], steps[inner], extents[inner].value
    if extents[outer].value == 1:
        return b
    if size == 1:
        return a
    return b if a is not None and b is not None and a == b * size else None


def divides(domain: TensorDomain, logical: Sequence[ScalarLike]) -> bool:
    """True if every split divides: each place in memory has an element."""
    known = _forward(domain, logical)
    splits = [t for t in domain.transforms if isinstance(t, Split)]
    return all(known[s.axis] is known[s.axis + ".o"] * known[s.axis + ".i"] for s in splits)

