# SPDX-License-Identifier: Apache-2.0
"""The torch functions that are defined here, in one table, and how Thunder is told of them.

    t1 = torch.nn.functional.huber_loss(t0, y)  ->  t1 = sub(t0, y), t2 = abs(t1), ... mean(t9)

A function is here for one of three reasons: Thunder leaves it to torch (one opaque call, which ends
a region, and runs once more for its gradient); Thunder has other arguments or defaults than torch;
or Thunder takes it apart into pieces whose gradient is wrong or slow. define.py has the two ways to
define one. To add one, write a row in the table of its subject:

    pointwise       each element, activations, other names of what Thunder knows, casts
    losses          losses, distances, log_softmax, cross_entropy
    batch_norms     batch_norm in training
    reductions      norms, extremes, variances, matrix products, layer_norm, rms_norm
    movement        rolls, tiles, shuffles, stacks, views, new tensors
    attention       scaled_dot_product_attention
    collectives     all_gather_tensor and the like, of torch.distributed
    groups          products of groups and counts, as a mixture of experts takes them
    recurrent       one step of an LSTM, a GRU, a plain recurrent network
    in_place        methods that write: those that Thunder lacks, or has by other functions
    kernels         convolutions, pooling, resizing: torch's kernels and torch's gradients
"""

from __future__ import annotations

from typing import Any

from thunder.core.symbol import BoundSymbol
from thunder.extend import Executor

from thunder_fuser.executors.support.dtensor_calls import CALLED
from thunder_fuser.functions import collectives
from thunder_fuser.functions.attention import ATTENTION
from thunder_fuser.functions.batch_norms import BATCH_NORMS
from thunder_fuser.functions.chunked_loss.symbol import CHUNKED_LOSS
from thunder_fuser.functions.collectives import COLLECTIVES
from thunder_fuser.functions.define import Composite, Rewrite, Table, lookasides, noted
from thunder_fuser.functions.groups import GROUPS
from thunder_fuser.functions.in_place import define_methods, rewritten
from thunder_fuser.functions.kernels import KERNELS_OF_TORCH
from thunder_fuser.functions.losses import LOSSES
from thunder_fuser.functions.movement import MOVEMENT, UNNAMED
from thunder_fuser.functions.pointwise import POINTWISE
from thunder_fuser.functions.recurrent import RECURRENT
from thunder_fuser.functions.reductions import REDUCTIONS
from thunder_fuser.trace.op import Reject

TABLES: dict[str, Table] = {
    "pointwise": POINTWISE, "losses": LOSSES, "batch_norms": BATCH_NORMS, "reductions": REDUCTIONS,
    "movement": MOVEMENT, "attention": ATTENTION, "kernels": KERNELS_OF_TORCH,
    "groups": GROUPS, "recurrent": RECURRENT, "in_place": rewritten(POINTWISE),
}  # fmt: skip
# By the name that Thunder gives torch's function, which is also that of the tensor's method.
FUNCTIONS = {name: table[name] for table in TABLES.values() for name in table}
WRITES = define_methods(FUNCTIONS)
FUNCTIONS |= CHUNKED_LOSS  # not one of torch's
FUNCTIONS |= COLLECTIVES  # Thunder has no names for these


def register(executor: Executor) -> None:
    """Registers the rewrites, which Thunder calls while it traces, and the composites."""
    on_dtensors = {key: noted(call) for called, call in CALLED.items() for key in (called, call)}
    rewrites: dict[str, Rewrite] = {}
    for name, function in FUNCTIONS.items():
        if isinstance(function, Rewrite):
            rewrites[name] = function
            continue
        if function.rewrite:
            rewrites[name] = Rewrite(function.rewrite)
        executor.register_supported(
            name,
            lambda *args, refuses=function.refuses, **kwargs: refuses(*args, **kwargs) is None,
            execution_transform=function.transform,
            grad_transform=function.gradient,
        )
    unnamed = UNNAMED | collectives.lookasides()
    executor._lookasides.update(lookasides(rewrites) | WRITES | unnamed | on_dtensors)


def composite_of(bsym: BoundSymbol) -> Composite | None:
    """The composite of a bound symbol that no other executor has claimed."""
    function: Any = FUNCTIONS.get(bsym.sym.id) if bsym.sym.executor is None else None
    return function if isinstance(function, Composite) else None


def why_apart(bsym: BoundSymbol) -> Reject | None:
    """Why Thunder takes a composite of the table apart; None for any other bound symbol."""
    composite = composite_of(bsym)
    return None if composite is None else composite.refuses(*bsym.args, **bsym.kwargs)
