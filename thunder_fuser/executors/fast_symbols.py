# SPDX-License-Identifier: Apache-2.0
"""What Thunder's passes ask of each bound symbol -> the same answers, without pytrees.

    flat_args, flat_outs        the leaves, less the structure that nobody reads
    from_bsym_swap_proxies      walks tuples, lists and dictionaries, and builds them anew
    producers                   looks names up; Thunder's raises and catches a KeyError for each

A pass makes new bound symbols, of which the next one asks it all again: the first step of ResNet-50
flattens 50,000 trees, most of them of two or three leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from thunder.core import baseutils, utils
from thunder.core.prims import PrimIDs
from thunder.core.proxies import CollectionProxy, Proxy, variableify
from thunder.core.pytree import tree_flatten_with_dataclass, tree_map, tree_unflatten
from thunder.core.symbol import BoundSymbol

from thunder_fuser.threads import cached_property
from thunder_fuser.trace.proxies import PLAIN, makes, reads

SwapMap = Mapping[Any, Any]  # {Variable of a proxy: what takes its place}

_MAKE_NOTHING = frozenset({PrimIDs.COMMENT, PrimIDs.PRINT, PrimIDs.RETURN})


_swap_of_thunder = BoundSymbol.from_bsym_swap_proxies
_producers_of_thunder = utils.producers


def ask_fast() -> None:
    """From now on Thunder's bound symbols answer so."""
    for name, leaves in {"flat_args": _flat_args, "flat_outs": _flat_outs}.items():
        answer = cached_property(leaves)
        answer.__set_name__(BoundSymbol, name)
        setattr(BoundSymbol, name, answer)
    BoundSymbol.from_bsym_swap_proxies = _from_bsym_swap_proxies


def _flat_args(self: BoundSymbol) -> list[Any]:
    return [*leaves_of((self.args, self.kwargs))]


def _flat_outs(self: BoundSymbol) -> list[Any]:
    is_known = isinstance(self.output, (Proxy, tuple, list))
    found = leaves_of((self.output,)) if is_known else tree_flatten_with_dataclass(self.output)[0]
    return [*found]


def leaves_of(values: Iterable[Any]) -> Iterator[Any]:
    """The leaves of trees, in the order of Thunder's pytrees."""
    for value in values:
        kind = type(value)
        if kind in PLAIN or isinstance(value, Proxy):
            yield value
        elif kind is tuple or kind is list:
            yield from leaves_of(value)
        elif kind is not dict or value:
            yield from tree_flatten_with_dataclass((value,))[0]


def _from_bsym_swap_proxies(
    self: BoundSymbol,
    swap_map: SwapMap,
    skip_inputs: bool = False,
    skip_output: bool = False,
    skip_subsymbols: bool = False,
) -> BoundSymbol:
    """A copy with other proxies; the bound symbol itself if there are none."""
    if not swap_map:
        return self
    changes: dict[str, Any] = {"subsymbols": list(self.subsymbols)}
    if not skip_inputs:
        changes["args"] = swapped(self.args, swap_map)
        changes["kwargs"] = swapped(self.kwargs, swap_map)
    if not skip_output:
        changes["output"] = swapped(self.output, swap_map)
    if not skip_subsymbols:
        skipped = skip_inputs, skip_output, skip_subsymbols
        changes["subsymbols"] = [
            one.from_bsym_swap_proxies(swap_map, *skipped) for one in self.subsymbols
        ]
    return self.from_bsym(**changes)


def swapped(value: Any, swap_map: SwapMap) -> Any:
    """The tree with other proxies, built anew."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, Proxy):
        return _end_of_chain(value, swap_map)
    if kind is tuple or kind is list:
        return kind([swapped(one, swap_map) for one in value])
    if kind is dict:
        return {key: swapped(one, swap_map) for key, one in value.items()}
    leaves, spec = tree_flatten_with_dataclass((value,))
    if len(leaves) == 1 and leaves[0] is value:
        return value
    return tree_unflatten([swapped(leaf, swap_map) for leaf in leaves], spec)[0]


def _end_of_chain(proxy: Any, swap_map: SwapMap) -> Any:
    """What a proxy becomes: t1 -> t2 and t2 -> t3 make t3 of t1."""
    if isinstance(proxy, CollectionProxy):
        proxy.coll = tree_map(lambda one: swapped(one, swap_map), proxy.collection())
    seen: set[Any] = set()
    while (key := variableify(proxy)) in swap_map and swap_map[key] is not proxy:
        baseutils.check(
            key not in seen, lambda: f"Detected a cycle while swapping; the cycle includes {seen}"
        )
        seen.add(key)
        proxy = swap_map[key]
    return proxy


def producers(trace_or_bsyms: Any, *, _map_to_numbers: bool = False) -> utils.ProxyDict:
    """{a proxy: the first bound symbol that makes it, or its place}; not what passes it along."""
    found = utils.ProxyDict()
    known = found._dict
    is_list = isinstance(trace_or_bsyms, list)
    for at, bsym in enumerate(trace_or_bsyms if is_list else trace_or_bsyms.bound_symbols):
        if bsym.sym.id in _MAKE_NOTHING:
            continue
        read = {proxy.name for proxy in reads(bsym)}
        for name in [proxy.name for proxy in makes(bsym)]:
            if name not in read and name not in known:
                known[name] = at if _map_to_numbers else bsym
    return found
