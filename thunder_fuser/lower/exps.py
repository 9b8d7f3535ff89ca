# SPDX-License-Identifier: Apache-2.0
"""Which exps may be two instructions on a GPU, with an error of 2 + |x| units in the last place.

Where all results are 16-bit floats; and exp(x - max(x)) that is only summed, as in log-sum-exp: a
term e^-t beside the largest one, which is 1, brings its (2 + t) units times e^-t into the sum.
"""

from __future__ import annotations

from thunder_fuser.analysis.part import Part
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.record import OpRecord, names_of

_EXPANDS = ("broadcast", "broadcast_in_dim")


def short_exps(part: Part) -> frozenset[str]:
    """The names of the Float exps that may be short."""
    halves = all(part.tensors[name].dtype.is_half for name in part.outputs)
    exps = [e for e in part.exprs if e.op == "exp" and names_of(e)]
    floats = [e for e in exps if part.tensors[e.outputs[0]].dtype is DataType.Float]
    return frozenset(e.outputs[0] for e in floats if halves or _fades_in_a_sum(part, e))


def _fades_in_a_sum(part: Part, exp: OpRecord) -> bool:
    """True for exp(x - max(x, dims)) whose only use is its sum over the same dims."""
    name = exp.outputs[0]
    readers = [e for e in part.exprs if name in names_of(e)]
    most = _subtracted_max(part, exp)
    if name in part.outputs or most is None or not readers:
        return False
    return all(e.op == "sum" and e.attr("dims") == most.attr("dims") for e in readers)


def _subtracted_max(part: Part, exp: OpRecord) -> OpRecord | None:
    """The max(x, dims) of exp(x - max(x, dims)) or exp(-(max(x, dims) - x))."""
    shifted = _made_by(part, exp, "sub")
    negated = _made_by(part, exp, "neg")
    if negated is not None:
        shifted = _made_by(part, negated, "sub")
    if shifted is None or len(names_of(shifted)) != 2:
        return None
    x, name = names_of(shifted) if negated is None else reversed(names_of(shifted))
    most = part.producer.get(name)
    while most is not None and most.op in _EXPANDS:
        most = part.producer.get(names_of(most)[0])
    return most if most is not None and most.op == "max" and names_of(most) == (x,) else None


def _made_by(part: Part, reader: OpRecord, op: str) -> OpRecord | None:
    """The producer of the first operand, if it is this op."""
    found = part.producer.get(names_of(reader)[0])
    return found if found is not None and found.op == op else None
