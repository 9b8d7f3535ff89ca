# SPDX-License-Identifier: Apache-2.0
"""How many rows of the logits exist at a time; 0: all, since chunks would not pay.

The option `loss_rows` says it, or leaves it to the policy of rematerialization:

    none()                logits are kept, as all values
    time()                in chunks where neither the weight nor the bias has a gradient
    memory(), budget(x)   in chunks
"""

from __future__ import annotations

from thunder_fuser.functions.losses import CrossEntropy
from thunder_fuser.options import in_force, option
from thunder_fuser.rematerialization.policy import Policy, policy_of
from thunder_fuser.source.jit_options import options_of_jit

# Measured on a GPU (benchmarks/results/h200_loss.json); a CPU needs fewer.
ROWS = {"cuda": 2048, "cpu": 512}


def rows_of(call: CrossEntropy, *, trains: bool) -> int:
    """The rows of a chunk; 0 if the logits stay whole. trains: whether chunks take more time, for
    sums of the weight's gradient or for logits that the backward computes again."""
    with in_force(options_of_jit()):
        rows, policy = option("loss_rows"), policy_of(option("rematerialization"))
    assert isinstance(rows, int)
    if rows < 0:
        rows = ROWS[call.logits.device.type] if _pays(policy, trains) else 0
    return rows if rows < call.logits._shape[0] else 0


def _pays(policy: Policy, trains: bool) -> bool:
    """True if fewer bytes are worth more time."""
    name = policy.text.partition("(")[0]
    return name in ("memory", "budget") or (name == "time" and not trains)
