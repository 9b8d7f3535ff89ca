# SPDX-License-Identifier: Apache-2.0
"""What a cut keeps -> the matrix products that the backward runs again instead.

    t1 = linear(x, w)     kept: x, t1                  kept: x
    t2 = gelu(t1)         recomputed: t2          ->   recomputed: t1, t2

A group is all kept values behind the same products: q, k and v, if these are views of one result.

Note [No chains]. To run again, a product reads values that are kept, or that kernels recompute from
these. No group that is taken reads a value of another one. If products read one another, the first
op of the backward would need the whole forward again, and all of it would be in memory at once. So
of a chain of products, every second one runs again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from thunder_fuser.rematerialization.forward import Forward
from thunder_fuser.rematerialization.policy import VIEW


@dataclass(frozen=True, slots=True)
class ProductGroup:
    """Values that need not be kept. again: the operations that compute them again, by their places;
    reads: kept values that these read; product: the arithmetic of the products among them."""

    values: frozenset[str]
    again: frozenset[int]
    reads: frozenset[str]
    bytes: int
    product: int


def groups_of(
    forward: Forward, kept: frozenset[str], again: frozenset[int], is_free: Sequence[bool]
) -> list[ProductGroup]:
    """The groups, in the order of the forward. again: what is recomputed in any case; is_free:
    whether an operation may be, by its place."""
    lineage = _Lineage(forward, kept, [free or at in again for at, free in enumerate(is_free)])
    parts: dict[frozenset[int], list[ProductGroup]] = {}
    for name in forward.values:
        part = lineage.group(name) if name in kept else None
        if part is not None:
            ran = frozenset(at for at in part.again if forward.operations[at].product)
            parts.setdefault(ran, []).append(part)
    return [
        ProductGroup(
            frozenset[str]().union(*(part.values for part in group)),
            frozenset[int]().union(*(part.again for part in group)),
            frozenset[str]().union(*(part.reads for part in group)),
            sum(part.bytes for part in group),
            group[0].product,
        )
        for group in parts.values()
    ]


def taken_of(groups: Iterable[ProductGroup], bytes: float) -> list[ProductGroup]:
    """Groups of at least so many bytes together, if there are: those that save the most for their
    arithmetic. Where one reads a value of another, the larger one may be taken, or the earlier."""
    apart: list[ProductGroup] = []
    gone: set[str] = set()
    read: set[str] = set()
    for group in sorted(groups, key=lambda group: (-group.bytes, group.product)):
        if group.bytes and gone.isdisjoint(group.reads) and read.isdisjoint(group.values):
            apart.append(group)
            gone |= group.values
            read |= group.reads
    taken: list[ProductGroup] = []
    for group in sorted(apart, key=lambda group: group.product / group.bytes):
        if bytes > 0:
            taken.append(group)
            bytes -= group.bytes
    return taken


@dataclass(slots=True)
class _Lineage:
    """From values to what they are computed from. able: whether a kernel may recompute an
    operation, by its place."""

    forward: Forward
    kept: frozenset[str]
    able: Sequence[bool]

    def group(self, name: str) -> ProductGroup | None:
        """The group of this value alone; None if no product is behind it, or one that cannot run
        again."""
        operations, value = self.forward.operations, self.forward.values[name]
        behind = self._behind([name], self._with_bases(name))
        if behind is None or not behind.products:
            return None
        operands = [each for at in behind.products for each in operations[at].inputs]
        before = self._behind(operands, frozenset())
        if before is None or before.products:
            return None
        return ProductGroup(
            frozenset({name}),
            frozenset(behind.kernels | behind.products | before.kernels),
            frozenset(behind.reads | before.reads),
            value.bytes,
            sum(operations[at].product for at in behind.products),
        )

    def _with_bases(self, name: str) -> frozenset[str]:
        """A value and, if it is a view, what it is a view of: these share their memory."""
        names, values = [name], self.forward.values
        while names[-1] in values and VIEW in values[names[-1]].tags:
            names += self.forward.operations[self.forward.maker[names[-1]]].inputs[:1]
        return frozenset(names)

    def _behind(self, names: Iterable[str], gone: frozenset[str]) -> _Reached | None:
        """What values are computed from, up to kept values that are not gone, and to products; None
        if some other operation is among it that no kernel may recompute."""
        behind, stack = _Reached(set(), set(), set()), [*names]
        while stack:
            name = stack.pop()
            at = self.forward.maker.get(name)
            if at is None or at in behind.kernels:  # an argument, or seen
                continue
            if name in self.kept and name not in gone:
                behind.reads.add(name)
            elif self.forward.operations[at].product:
                behind.products.add(at)
            elif self.able[at]:
                behind.kernels.add(at)
                stack += self.forward.operations[at].inputs
            else:
                return None
        return behind


@dataclass(frozen=True, slots=True)
class _Reached:
    """The places of operations that kernels and products run again, and the kept values read."""

    kernels: set[int]
    products: set[int]
    reads: set[str]
