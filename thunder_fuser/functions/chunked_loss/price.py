# SPDX-License-Identifier: Apache-2.0
"""How many rows of the logits exist at a time; 0: all, since chunks would not pay.

The option `loss_rows` says it, or leaves it to the policy of rematerialization:

    none()                logits are kept, as all values
    time()                in chunks where nothing is slower: if the weight needs no gradient, and
                          the backward does not compute the logits again
    memory(), budget(x)   in chunks
"""

from __future__ import annotations

from thunder_fuser.functions.losses import CrossEntropy
from thunder_fuser.options import in_force, option
from thunder_fuser.rematerialization.policy import Policy, policy_of
from thunder_fuser.source.jit_options import options_of_jit

# A GPU was measured with its number alone (benchmarks/results/h200_loss.json). In bf16 that chunk
# has about as many bytes as the gradient of a head of as many columns, which the loss needs in any
# case. A CPU needs fewer, and widens a chunk for the gradient of the weight.
ROWS = {"cuda": 2048, "cpu": 512}


def rows_of(call: CrossEntropy, *, trains: bool) -> int:
    """The rows of a chunk; 0 if the logits stay whole. trains: whether chunks take time, for one of
    the reasons above."""
    with in_force(options_of_jit()):
        rows, policy = option("loss_rows"), policy_of(option("rematerialization"))
    assert isinstance(rows, int)
    if rows < 0:
        rows = ROWS[call.logits.device.type] if _pays(policy, trains) else 0
    return rows if rows < call.logits._shape[0] else 0


def _pays(policy: Policy, trains: bool) -> bool:
    """True if fewer bytes are worth their time.

    The weight's gradient is read and written for each chunk, in float32. Without it nothing is
    slower: the products are the same, and the logits are read once more in neither case.
    """
    name = policy.text.partition("(")[0]
    return name in ("memory", "budget") or (name == "time" and not trains)
