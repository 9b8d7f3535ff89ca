# SPDX-License-Identifier: Apache-2.0
"""What Thunder gives another integer type than torch -> a Reject: torch computes it.

    t = add(u8[5] x, i64[] z)    torch: u8, for tensors that have dimensions decide; Thunder: i16
    y = mul(t, 2)                torch: u8, of the t that comes at the call

Thunder has no common type of uint8 and the signed type of a 0-dim tensor, which it calls weak, but
int16; and its weak int8 stands for torch's int64 too, see types.py. Its torch executor calls
torch's own functions, whose results are right; a region would make what the trace says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.types import INTS, Reject, data_type
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.rematerialization.proxies import makes, reads

Support = Callable[[BoundSymbol], "Reject | None"]

_MISTYPED = Reject("integers beside a 0-dim tensor, which Thunder promotes to another type")


def where_types_agree(bsyms: Sequence[BoundSymbol], support: Support) -> Support:
    """The support of these bound symbols, less those that Thunder has types of its own for."""
    wrong: set[str] = set()
    for bsym in bsyms:
        if _mixes(bsym) or any(one.name in wrong for one in reads(bsym)):
            wrong.update(one.name for one in makes(bsym) if _integer_type(one) is not None)

    def asked(bsym: BoundSymbol) -> Reject | None:
        mistyped = any(one.name in wrong for one in chain(reads(bsym), makes(bsym)))
        return _MISTYPED if mistyped or _mixes(bsym) else support(bsym)

    return asked


def _mixes(bsym: BoundSymbol) -> bool:
    """True for uint8 beside a signed type, one of them that of a 0-dim tensor; bool beside int8."""
    tensors = [one for one in reads(bsym) if isinstance(one, TensorProxy)]
    if len(tensors) < 2 or all(one.ndim for one in tensors):
        return False
    kinds = {_integer_type(one) for one in tensors}
    mixed = DataType.UInt8 in kinds and bool(kinds - {DataType.UInt8, None})
    return mixed or {dtypes.bool8, dtypes.int8} <= {_strong(one) for one in tensors}


def _strong(one: TensorProxy) -> dtypes.dtype:
    return dtypes.to_strong_dtype(one.dtype)


def _integer_type(one: Any) -> DataType | None:
    kind = data_type(one.dtype) if isinstance(one, TensorProxy) else None
    return kind if kind in INTS else None
