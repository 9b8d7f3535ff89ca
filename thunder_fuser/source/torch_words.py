# SPDX-License-Identifier: Apache-2.0
"""Keywords of torch.compile -> what to write here: thunder.jit takes any keyword and ignores these.

    thunder_fuser.jit(f, mode="max-autotune")   OptionError: ... write fuser_autotune=0.5
    thunder.jit(f, mode="max-autotune")         OptionWarning, once, the same
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thunder_fuser.errors import OptionError

_MODES = {
    "reduce-overhead": "write fuser_cuda_graphs=True",
    "max-autotune": "write fuser_autotune=0.5, and fuser_cuda_graphs=True on a GPU",
    "max-autotune-no-cudagraphs": "write fuser_autotune=0.5",
}
_SHAPES = "leave it out: each new shape is traced again, and most kernels are shared by all shapes"
WORDS = {
    "mode": "leave it out",
    "dynamic": _SHAPES,
    "fullgraph": "leave it out: the whole function is one graph, or an error",
    "backend": 'leave it out, or write torch.compile(f, backend="thunder_fuser")',
    "options": "write each option as a keyword, such as fuser_strict=True",
    "disable": "leave it out, and call the function itself",
}


def advice_on(name: str, value: object) -> str:
    """What to write in place of a keyword; empty for one that is not torch.compile's.

    >>> advice_on("mode", "reduce-overhead"), advice_on("mode", "default"), advice_on("cache", "")
    ('write fuser_cuda_graphs=True', 'leave it out', '')
    """
    advice = WORDS.get(name, "")
    return _MODES.get(str(value), advice) if name == "mode" else advice


def refuse_words(door: str, keywords: Mapping[str, Any], where: str = "") -> None:
    """Raises OptionError for the first keyword of torch.compile. where: the words go in there."""
    for name, value in keywords.items():
        if advice := advice_on(name, value):
            raise OptionError(
                door, expected="keywords of thunder.jit",
                got=f"{name}={value!r}, which is torch.compile's", do=advice + where,
            )  # fmt: skip
