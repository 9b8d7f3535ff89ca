# SPDX-License-Identifier: Apache-2.0
"""The values of the options that affect compilation. Each stage takes them as an argument.

`options.compile_options` makes one where a call enters the compiler. The same object is part of
the cache's key, so a cached program always has the options of its key.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from thunder_fuser.multi_device import MultiDeviceParams


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Each field but `schedules` is an option; `options.OPTIONS` has its default and its meaning.

    schedules: pairs (segment, its schedule) that a call gives. A schedule is a text or a function.
    """

    emulate: bool
    repeatable: bool
    cuda_graphs: bool
    dump: str
    max_registers_bytes: int
    few_rows: int = 8
    schedules: tuple[tuple[int | str, Any], ...] = ()
    skip_passes: str = ""
    multi_device: MultiDeviceParams = field(default_factory=MultiDeviceParams)

    @property
    def of_stages(self) -> CompileOptions:
        """The options without the schedules of segments."""
        return replace(self, schedules=())
