# SPDX-License-Identifier: Apache-2.0
"""What a region would give another type than torch -> a Reject: torch computes it.

    t = floor_divide(f16[] a, a)      torch: f16; a region, as the trace says: f32
    u = add(u8[5] x, i64[] z)         torch: u8; a region: i16
    v = mul(u, 2)                     torch: u8, of the u that comes at the call

Thunder takes the type of a 0-dim tensor for that of a number, has other types than torch for sums
of bools, and for integers beside numbers of floats. Its torch executor calls torch's own functions,
whose results are right; a region would make what the trace says. So torch is asked wherever they
may differ, in the order of the trace, for a value that has another type than the trace says has it
for its readers too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.eager import common_type, may_differ, types_in_torch
from thunder_fuser.executors.support import leaves_of
from thunder_fuser.executors.translate import types_of_results
from thunder_fuser.executors.types import EXACT, FLOATS, INTS, data_type
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.proxies import makes, reads

Support = Callable[[BoundSymbol], "Reject | None"]

_OTHER = Reject("Thunder gives its result another type than torch")
_READS = Reject("reads what Thunder gives another type than torch")


def where_types_agree(bsyms: Sequence[BoundSymbol], support: Support) -> Support:
    """The support of these bound symbols, or parts of them, less what has other types in torch."""
    walk = _Walk(support)
    for bsym in bsyms:
        walk.add(bsym)

    def asked(bsym: BoundSymbol) -> Reject | None:
        refused = (walk.refused.get(one.name) for one in makes(bsym))
        return next(filter(None, refused), None) or support(bsym)

    return asked


class _Walk:
    """The types that values really have, where they are not the trace's.

    types: by name, None where it is unknown. foreign: of what torch makes for that reason. weak:
    floats made of integers and numbers. Thunder gives them a weak type, which gives way to bf16,
    and forgets so where the user's program names them.
    """

    def __init__(self, support: Support) -> None:
        self.support = support
        self.types: dict[str, DataType | None] = {}
        self.foreign: set[str] = set()
        self.weak: set[str] = set()
        self.refused: dict[str, Reject] = {}

    def add(self, bsym: BoundSymbol) -> None:
        """Notes the types of its results."""
        results = _results(bsym)
        read = [one for one in reads(bsym) if isinstance(one, TensorProxy)]
        if not results or not (self._reads_other(read) or may_differ(read)):
            return
        if all(data_type(one.dtype) in EXACT or one.name in self.weak for one in read):
            self.weak.update(one.name for one in results if data_type(one.dtype) in FLOATS)
        theirs = types_in_torch(bsym.sym, bsym.args, bsym.kwargs, self.types)
        ours = self._ours(bsym, results)
        if isinstance(theirs, Reject):
            self._refuse(results, theirs)
        elif theirs is not None and len(theirs) == len(results):
            if ours is not None and (ours != theirs or self._compares_otherwise(bsym, theirs)):
                self._refuse(results, _OTHER)
            self._note(results, theirs, foreign=ours != theirs)
        elif any(one.name in self.foreign for one in read):
            self._refuse(results, _READS)
            self._note(results, [None] * len(results), foreign=True)
        elif ours is not None:
            self._note(results, ours, foreign=False)

    def _reads_other(self, read: Sequence[TensorProxy]) -> bool:
        return any(one.name in self.types or one.name in self.weak for one in read)

    def _ours(
        self, bsym: BoundSymbol, results: Sequence[Proxy]
    ) -> tuple[DataType, ...] | None:
        """The types that a region would make; None of what is in no region."""
        unknown = any(self.types.get(one.name, True) is None for one in reads(bsym))
        if unknown or self.support(bsym) is not None:
            return None
        return types_of_results([*leaves_of(bsym)], reads(bsym), results, self.types)

    def _compares_otherwise(self, bsym: BoundSymbol, theirs: Sequence[DataType]) -> bool:
        """lt(u8[3] x, i64[] n): Thunder compares them as i16, torch as u8. The result is a bool."""
        if set(theirs) != {DataType.Bool}:
            return False
        casts = (one for one in leaves_of(bsym) if one.sym.id is PrimIDs.CONVERT_ELEMENT_TYPE)
        kinds = {data_type(one.args[1]) for one in casts} & INTS
        return bool(kinds - {common_type(bsym.args, self.types)})

    def _refuse(self, results: Sequence[Proxy], why: Reject) -> None:
        self.refused.update((one.name, why) for one in results)

    def _note(
        self, results: Sequence[TensorProxy], types: Sequence[DataType | None], foreign: bool
    ) -> None:
        other = {
            one.name: dtype for one, dtype in zip(results, types, strict=True)
            if data_type(one.dtype) is not dtype
        }  # fmt: skip
        self.types.update(other)
        self.foreign.update(other if foreign else ())


def _results(bsym: BoundSymbol) -> list[TensorProxy]:
    """The tensors that it makes, less those that it hands on."""
    given = {one.name for one in reads(bsym)}
    made = [one for one in makes(bsym) if one.name not in given]
    return made if all(isinstance(one, TensorProxy) for one in made) else []
