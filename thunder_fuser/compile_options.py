# SPDX-License-Identifier: Apache-2.0
"""The options that change what is compiled, with their values: an argument of every stage.

`options.compile_options` makes one where a call enters the compiler. The same object is part of
the cache's keys, so a key cannot differ from what was compiled under it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Each field is a row of `options.OPTIONS`, which has its default and says what it does."""

    emulate: bool
    repeatable: bool
    dump: str
    max_registers_bytes: int
