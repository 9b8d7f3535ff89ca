# SPDX-License-Identifier: Apache-2.0
"""The values of the options that change what is compiled. Each stage takes them as an argument.

`options.compile_options` makes one where a call enters the compiler. The same object is part of
the cache's key, so a cached program always has the options of its key.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from thunder_fuser.multi_device import MultiDeviceParams


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Each field is an option; `options.OPTIONS` has its default and its meaning."""

    emulate: bool
    repeatable: bool
    cuda_graphs: bool
    dump: str
    max_registers_bytes: int
    multi_device: MultiDeviceParams = field(default_factory=MultiDeviceParams)
