# SPDX-License-Identifier: Apache-2.0
"""Names for what a pass adds."""

from __future__ import annotations

from thunder_fuser.ir.fusion import Fusion


class FreshNames:
    """Names that no value of a fusion has."""

    def __init__(self, fusion: Fusion) -> None:
        self._last = max(int(name[1:]) for name in fusion.tensors if name[1:].isdigit())

    def __call__(self) -> str:
        self._last += 1
        return f"T{self._last}"
