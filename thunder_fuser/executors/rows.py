# SPDX-License-Identifier: Apache-2.0
"""What the support table is made of: its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thunder.core.prims import PrimIDs

from thunder_fuser.executors.types import ANY
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.trace.op import Reject

Check = Callable[..., "Reject | None"]


@dataclass(frozen=True, slots=True)
class Row:
    """A primitive: what it is recorded as, the types it is taken in, what else must hold.

    is_call: torch runs it, so that it is worth taking only between ops that are fused.
    """

    id: PrimIDs | str
    record: Callable[..., Any]
    dtypes: frozenset[DataType] = ANY
    check: Check | None = None
    is_call: bool = False

    @property
    def name(self) -> str:
        """What messages call it: `add` for PrimIDs.ADD, `cumsum` for "torch.cumsum"."""
        own = self.id if isinstance(self.id, str) else self.id.name.lower()
        return own.removeprefix("torch.")
