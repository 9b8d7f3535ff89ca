# SPDX-License-Identifier: Apache-2.0
"""How many rows of the logits exist at a time; 0: all, since chunks would not pay.

The option `loss_rows` says it, or leaves it to the policy of rematerialization.
"""

from __future__ import annotations

from typing import Any

from thunder_fuser.functions.chunked_loss.loop import Needs
from thunder_fuser.options import in_force, option
from thunder_fuser.rematerialization.policy import Policy, policy_of
from thunder_fuser.source.jit_options import options_of_jit

# A product of so many rows runs at full speed, and its result has as many bytes as the gradient of
# a weight of as many columns.
ROWS = 2048


def rows_of(count: int, weight: Any, needs: Needs) -> int:
    """The rows of a chunk, of `count` rows in all; 0 if the logits stay whole."""
    with in_force(options_of_jit()):
        rows, policy = int(option("loss_rows")), policy_of(option("rematerialization"))  # type: ignore[arg-type]
    if rows < 0:
        rows = ROWS if _pays(policy, needs) else 0
    return rows if rows < count else 0


def _pays(policy: Policy, needs: Needs) -> bool:
    """True if fewer bytes are worth their time.

    The weight's gradient is read and written for each chunk, in float32. Without it nothing is
    slower: the same products, and one pass over the logits less.
    """
    name = policy.text.partition("(")[0]
    return name in ("memory", "budget") or (name == "time" and not needs[1])
