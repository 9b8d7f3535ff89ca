# SPDX-License-Identifier: Apache-2.0
"""What Thunder 0.2.6 asks torch for while it is imported, put back where a newer torch lacks it.

    torch 2.13: no Tensor.align_as          ->  one that tensors do not have; Thunder only lists it
    torch 2.14: Function.apply is built in  ->  the same as a classmethod; Thunder asks for __func__

It is done when Thunder is imported, so that `import thunder_fuser` does not wait for torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.metadata import version
from typing import Any

from thunder_fuser.errors import UnsupportedVersionError
from thunder_fuser.versions import parse

FIRST_LACKING = (2, 13)
# Of named tensors, which torch 2.13 no longer has.
TENSOR_METHODS = ("align_as", "align_to", "has_names", "refine_names", "rename")


class _BeforeThunder(MetaPathFinder):
    """Finds no module. It sees that Thunder is about to be imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name == "thunder":
            sys.meta_path.remove(self)
            put_back()


def watch_for_thunder() -> None:
    """Puts names back when Thunder is imported. Raises UnsupportedVersionError if it has failed."""
    if parse(version("torch")) < FIRST_LACKING or "thunder" in sys.modules:
        return
    if any(name.startswith("thunder.") for name in sys.modules):
        raise UnsupportedVersionError(
            "lightning-thunder",
            expected="thunder_fuser to be imported first, to give it what this torch lacks",
            got=f"an import of thunder that failed with torch {version('torch')}",
            do="start again, with `import thunder_fuser` above `import thunder`",
        )
    sys.meta_path.insert(0, _BeforeThunder())


class _Removed:
    """A method that Tensor lists, and that no tensor has: `hasattr(tensor, name)` is False."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __get__(self, tensor: Any, owner: type) -> _Removed:
        if tensor is None:
            return self
        raise AttributeError(f"torch {version('torch')} has no Tensor.{self.__name__}")

    def __call__(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return self.__get__(tensor, type(tensor))


def put_back() -> list[str]:
    """The names that torch lacked, which it has from now on."""
    import torch  # noqa: PLC0415 when Thunder imports it too
    from torch.autograd.function import Function  # noqa: PLC0415

    lacking = [name for name in TENSOR_METHODS if not hasattr(torch.Tensor, name)]
    for name in lacking:
        setattr(torch.Tensor, name, _Removed(name))
    if not hasattr(Function.apply, "__func__"):
        # Without a frame of Python, which torch.compile would try to read.
        apply = partial(vars(Function)["apply"])
        apply.__name__ = "apply"  # type: ignore[attr-defined]
        Function.apply = classmethod(apply)  # type: ignore[method-assign,assignment]
        lacking.append("Function.apply")
    return lacking
