# SPDX-License-Identifier: Apache-2.0
"""Properties and functions of bound symbols that Thunder's passes use -> the same without pytrees.

    flat_args, flat_outs        the leaves alone; nobody reads the tree's structure
    from_bsym_swap_proxies      walks tuples, lists and dictionaries itself, and rebuilds them
    producers                   looks names up; Thunder's raises and catches a KeyError for each
    gather_ctxs, to_printable   collect the texts and objects of a bound symbol once, not twice
    safe_map_flat, tree_map     take a short way for lists of proxies, and for a single proxy
    dce                         compares names, and looks at tags of all parts only if it must
    add_constraint              compares a guard only with those of the same proxy

Each pass makes new bound symbols, so the next one computes all of this again. Most trees have two
or three leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

import torch
from thunder.core import baseutils, codeutils, pytree, transform_common, utils
from thunder.core.jit_ext import JitCtx
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import CollectionProxy, Proxy, Variable, variableify
from thunder.core.pytree import tree_flatten_with_dataclass, tree_iter, tree_unflatten
from thunder.core.symbol import BoundSymbol, has_tags
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace

from thunder_fuser.base.threads import cached_property
from thunder_fuser.thunder_patches.patch import Hooks, replace_everywhere
from thunder_fuser.trace.proxies import PLAIN, makes, reads

SwapMap = dict[Any, Any]  # {Variable of a proxy: its replacement}

_MAKE_NOTHING = frozenset({PrimIDs.COMMENT, PrimIDs.PRINT, PrimIDs.RETURN})
_swap_of_thunder = BoundSymbol.from_bsym_swap_proxies  # tests compare with it
_producers_of_thunder = utils.producers
_print_of_thunder = codeutils.to_printable
_map_of_thunder = utils.safe_map_flat
_dce_of_thunder = transform_common.dce
_tree_of_thunder = pytree.tree_map
_add_of_thunder = JitCtx.add_constraint
# Thunder prints values of these types as they are.
_PRINTED = frozenset({str, int, float, bool, complex, type(None), torch.dtype, torch.device})
_ROWS = (tuple, list)
_LONG = 8  # links of a chain of replacements
_SIMPLE = _PRINTED | {*_ROWS}


def answer_fast(_: Hooks) -> None:
    """From now on, Thunder's passes call these functions."""
    replace_everywhere({
        _producers_of_thunder: producers, _print_of_thunder: to_printable,
        _map_of_thunder: safe_map_flat, _dce_of_thunder: dce, _tree_of_thunder: tree_map,
    })  # fmt: skip


def ask_fast(_: Hooks) -> None:
    """From now on, Thunder's bound symbols use these."""
    leaves: dict[str, Callable[[BoundSymbol], list[Any]]] = {
        "flat_args": lambda bsym: leaves_of((bsym.args, bsym.kwargs)),
        "flat_outs": _flat_outs,
    }
    for name, function in leaves.items():
        answer = cached_property(function)
        answer.__set_name__(BoundSymbol, name)
        setattr(BoundSymbol, name, answer)
    BoundSymbol.from_bsym_swap_proxies = _from_bsym_swap_proxies
    # The modules, functions and objects in its text; `import_ctx` finds the last.
    BoundSymbol.gather_ctxs = lambda b: (b.import_ctx(), b._get_call_ctx(), b._object_ctx)


def guard_fast(_: Hooks) -> None:
    """From now on, a guard is compared with those of the same proxy."""
    JitCtx.add_constraint = _add_constraint


def _flat_outs(self: BoundSymbol) -> list[Any]:
    if isinstance(self.output, (Proxy, tuple, list)):
        return leaves_of((self.output,))
    return [*tree_flatten_with_dataclass(self.output)[0]]


def leaves_of(values: Iterable[Any]) -> list[Any]:
    """The leaves of trees, in the order of Thunder's pytrees."""
    return [
        leaf for value in values for leaf in
        ((value,) if type(value) in PLAIN or isinstance(value, Proxy) else _leaves(value))
    ]  # fmt: skip


def _leaves(value: Any) -> list[Any]:
    if type(value) in _ROWS:
        return leaves_of(value)
    return [] if type(value) is dict and not value else [*tree_flatten_with_dataclass((value,))[0]]


def _from_bsym_swap_proxies(
    self: BoundSymbol,
    swap_map: SwapMap,
    skip_inputs: bool = False,
    skip_output: bool = False,
    skip_subsymbols: bool = False,
) -> BoundSymbol:
    """A copy with other proxies; the bound symbol itself if the map is empty."""
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
            part.from_bsym_swap_proxies(swap_map, *skipped) for part in self.subsymbols
        ]
    return self.from_bsym(**changes)


def swapped(value: Any, swap_map: SwapMap) -> Any:
    """The tree, rebuilt with other proxies."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, Proxy):
        return _end_of_chain(value, swap_map)
    if kind in _ROWS:
        return kind([x if type(x) in PLAIN else swapped(x, swap_map) for x in value])
    if kind is dict:
        return {key: swapped(item, swap_map) for key, item in value.items()}
    leaves, spec = tree_flatten_with_dataclass((value,))
    if len(leaves) == 1 and leaves[0] is value:
        return value
    return tree_unflatten([swapped(leaf, swap_map) for leaf in leaves], spec)[0]


def _end_of_chain(proxy: Any, swap_map: SwapMap) -> Any:
    """The last replacement of a proxy: with t1 -> t2 and t2 -> t3, t1 becomes t3.

    A long chain is made short in the map: Thunder adds a link for each write in place. A loop of
    2048 writes (the sliding window of Gemma 2 in litgpt) took 60 s.
    """
    if isinstance(proxy, CollectionProxy):
        proxy.coll = tree_map(lambda leaf: swapped(leaf, swap_map), proxy.collection())
    seen: set[Any] = set()
    while (key := variableify(proxy)) in swap_map and swap_map[key] is not proxy:
        baseutils.check(
            key not in seen, lambda: f"Detected a cycle while swapping; the cycle includes {seen}"
        )
        seen.add(key)
        proxy = swap_map[key]
    if seen and len(seen) > _LONG:
        swap_map.update(dict.fromkeys(seen, proxy))
    return proxy


def producers(trace_or_bsyms: Any, *, _map_to_numbers: bool = False) -> utils.ProxyDict:
    """{a proxy: the first bound symbol that makes it, or its place}. A bound symbol that returns
    its operand does not make it."""
    makers = utils.ProxyDict()
    known = makers._dict
    is_list = isinstance(trace_or_bsyms, list)
    for at, bsym in enumerate(trace_or_bsyms if is_list else trace_or_bsyms.bound_symbols):
        if bsym.sym.id in _MAKE_NOTHING:
            continue
        read = {proxy.name for proxy in reads(bsym)}
        for name in [proxy.name for proxy in makes(bsym)]:
            if name not in read and name not in known:
                known[name] = at if _map_to_numbers else bsym
    return makers


def dce(trace: TraceCtx, needed_proxies: set[Any] | None = None) -> TraceCtx:
    """The trace without dead code. needed_proxies: further proxies to keep; all that are needed are
    added to it."""
    start = perf_counter_ns()
    needed = {variable.proxy.name: variable.proxy for variable in needed_proxies or ()}
    needed.update((leaf.name, leaf) for leaf in tree_iter(trace.output) if isinstance(leaf, Proxy))
    makers, kept = producers(trace)._dict, []
    for bsym in reversed(trace.bound_symbols):
        results = (proxy.name for proxy in makes(bsym))
        if any(name in needed and makers[name] == bsym for name in results) or _stays(bsym):
            _drop_empty_parts(bsym)
            kept.append(bsym)
            needed.update((proxy.name, proxy) for proxy in reads(bsym))
    if needed_proxies is not None:
        needed_proxies.update(map(Variable, needed.values()))
    live = from_trace(trace)
    live.bound_symbols = transform_common.remove_duplicate_number_proxies(kept[::-1])
    took = (perf_counter_ns() - start) // 1_000_000
    live.set_provenance(TraceProvenance(f"Dead Code Elimination (took {took} milliseconds)"))
    return live


def _stays(bsym: BoundSymbol) -> bool:
    return bool(has_tags(bsym, {OpTags.DONT_DCE}))


def _drop_empty_parts(bsym: BoundSymbol) -> None:
    """Drops parts that compute nothing: Thunder's passes have no rule for them."""
    bsym.subsymbols = [
        part for part in bsym.subsymbols
        if (part.subsymbols or part.sym.is_prim) and (makes(part) or _stays(bsym))
    ]  # fmt: skip
    for part in bsym.subsymbols:
        _drop_empty_parts(part)


def _add_constraint(self: JitCtx, constraint: tuple[Any, ...]) -> None:
    """Adds a guard unless an equal one is there; equal guards have the same function and proxy."""
    function, first, *_ = constraint
    key = function, len(constraint), getattr(first, "name", None)
    every, known = self._constraints, vars(self).setdefault("_known", {})
    self._constraints = known.setdefault(key, [])
    before = len(self._constraints)
    try:
        _add_of_thunder(self, constraint)
        every += self._constraints[before:]
    finally:
        self._constraints = every


def to_printable(trace: Any, value: Any, **contexts: Any) -> Any:
    """The printable form of a value; the objects that its text names are added to the contexts."""
    kind = type(value)
    if kind in _PRINTED or isinstance(value, Proxy):
        return value
    if kind in _ROWS and all(type(o) in _SIMPLE or isinstance(o, Proxy) for o in value):
        return kind([to_printable(trace, item, **contexts) for item in value])
    return {} if kind is dict and not value else _print_of_thunder(trace, value, **contexts)


def safe_map_flat(function: Callable[..., Any], *trees: Any) -> Any:
    """function(leaf, ...) for the corresponding leaves of trees with equal structures."""
    is_flat = all(
        type(tree) is list and len(tree) == len(trees[0]) and all(map(_is_leaf, tree))
        for tree in trees
    )
    return tuple(map(function, *trees)) if is_flat else _map_of_thunder(function, *trees)


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any, **options: Any) -> Any:
    """The tree with function(leaf) in place of each leaf."""
    if _is_leaf(tree) and not rest and not options:
        return function(tree)
    return _tree_of_thunder(function, tree, *rest, **options)


def _is_leaf(value: Any) -> bool:
    return type(value) in PLAIN or isinstance(value, Proxy)
