# SPDX-License-Identifier: Apache-2.0
"""A bound symbol -> the proxies it reads, and those it makes.

    t3 = cat([t1, t2], 0)  ->  reads: t1, t2; makes: t3

Thunder's own `flat_proxy_args` and `flat_proxy_outs` say the same, and remember it: four objects
for each, for as long as the bound symbol lives. Those of a compiled function live as long as it,
so nothing of ours asks these properties (docs/caches.md, "What a compiled function keeps alive").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from thunder.core import dtypes
from thunder.core.devices import Device
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_flatten_with_dataclass
from thunder.core.symbol import BoundSymbol

_PLAIN = frozenset({int, float, bool, complex, str, type(None), Device, torch.device, torch.dtype,
                    dtypes.floating, dtypes.signedinteger, dtypes.bool_, type})  # fmt: skip


def reads(bsym: BoundSymbol) -> list[Proxy]:
    """The proxies among its arguments, one that it reads twice twice."""
    found = [*_proxies(bsym.args)]
    if bsym.kwargs:
        found += _proxies(bsym.kwargs[name] for name in sorted(bsym.kwargs))
    return found


def makes(bsym: BoundSymbol) -> list[Proxy]:
    """The proxies among its results."""
    output = bsym.output
    return [output] if isinstance(output, Proxy) else [*_proxies((output,))]


def _proxies(values: Iterable[Any]) -> Iterator[Proxy]:
    """In the order of Thunder's pytrees."""
    for value in values:
        if isinstance(value, Proxy):
            yield value
        elif type(value) in (tuple, list, torch.Size):
            yield from _proxies(value)
        elif type(value) not in _PLAIN:
            leaves, _ = tree_flatten_with_dataclass((value,))
            yield from (leaf for leaf in leaves if isinstance(leaf, Proxy))
