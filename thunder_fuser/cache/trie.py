# SPDX-License-Identifier: Apache-2.0
"""The trie over op records. Its leaves are cache entries, which run definitions.

Definitions with equal first records share a path.

define_tensor - define_tensor - add - add_output*          two definitions, five records,
                              \\ mul - add_output*          six nodes: the first two are shared

Evicting the second one removes its leaf and the records that lead to no other leaf:

define_tensor - define_tensor - add - add_output*          four nodes
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch

from thunder_fuser.base.logs import log, timing
from thunder_fuser.base.stages import stage
from thunder_fuser.base.threads import Bounded, make_lock
from thunder_fuser.cache.executable import (
    MOST_VARIANTS,
    Executable,
    ProgramKey,
    Schedules,
    target_for,
)
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.errors import OptionError
from thunder_fuser.host.call.arguments import check_count
from thunder_fuser.host.programs.program import HostProgram
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Definition, OpRecord, record_text
from thunder_fuser.options import compile_options, option
from thunder_fuser.presegment.specialise import InputKey
from thunder_fuser.sharding.dtensors import is_dtensor
from thunder_fuser.sharding.entry import ShardedEntry, records_of
from thunder_fuser.target import Target


class FusionEntry:
    """A definition in the cache. number: its id, which is never used for another definition."""

    def __init__(self, definition: Definition, number: int) -> None:
        self.definition = definition
        self.number = number
        self.error: Exception | None = None
        self._executable: Executable | None = None
        self._lock = make_lock()
        self._sharded: Bounded[ShardedEntry] = Bounded(MOST_VARIANTS)
        self.is_expected = False  # true if it was made before a call looked it up
        # An item for each running call. A list, because append and pop are atomic.
        self.users: list[None] = []

    @property
    def fusion(self) -> Fusion:
        """The typed fusion; raises the definition's error if it has one."""
        return self.prepare().fusion

    def prepare(self) -> Executable:
        """The Executable, made at the first call. Raises the definition's error if it has one."""
        if self._executable is None:
            with self._lock:
                self._define()
        if self._executable is None:
            assert self.error is not None
            raise copy.copy(self.error)  # a copy: each raise adds its frames, which hold tensors
        return self._executable

    def _define(self) -> None:
        if self._executable is None and self.error is None:
            try:
                self._executable = Executable(self.definition)
            except ValueError as error:
                error.__cause__ = error.__context__ = None
                self.error = error.with_traceback(None)

    def held_programs(self) -> list[tuple[ProgramKey, HostProgram]]:
        """The programs that the entry holds now, with their keys."""
        return self.prepare().programs.items()

    # ---- use

    def plan_ahead(
        self, keys: tuple[InputKey, ...], device: torch.device, options: CompileOptions
    ) -> None:
        """Plans and compiles for calls with such arguments on a device, but loads nothing."""
        programs = self.prepare().programs
        with timing(f"definition {self.number}, ahead"):
            programs.plan_ahead(keys, target_for(device, options), options)

    def pin(self) -> None:
        """Keeps the cache from evicting the entry until `unpin`. Pins are counted."""
        self.users.append(None)

    def unpin(self) -> None:
        self.users.pop()

    def execute(
        self, arguments: Sequence[Any], target: Target | None = None, schedules: Schedules = ()
    ) -> list[Any]:
        """Checks every argument and runs the fusion.

        A result whose memory no strides describe is an AllocatedTensor. The results are DTensors
        if any argument is one.
        """
        self.pin()
        try:
            runs: Executable | ShardedEntry = self.prepare()
            if any(map(is_dtensor, arguments)):
                check_count(self.fusion, arguments)
                runs = self._sharded_for(arguments)
            return runs.execute(arguments, target, schedules)
        finally:
            self.unpin()

    def _sharded_for(self, arguments: Sequence[Any]) -> ShardedEntry:
        """The definition on the mesh and placements of these DTensors."""
        key = tuple(
            (id(v.device_mesh), v.placements) if is_dtensor(v) else isinstance(v, torch.Tensor)
            for v in arguments
        )

        def sharded() -> ShardedEntry:
            records = records_of(self.fusion, arguments)
            known = (*self.fusion.definition, *records)
            return ShardedEntry(Executable(known) if records else self.prepare(), arguments)

        return self._sharded.get_or_make(key, sharded)


    def program_for(
        self,
        arguments: Sequence[Any],
        target: Target | None = None,
        name: str = "",
        schedules: Schedules = (),
    ) -> HostProgram:
        """The program for such arguments, compiled on a miss. InputError if they do not fit.

        name: the folder for its texts in the option dump.
        """
        options = compile_options(schedules)
        if options.dump:
            options = replace(options, dump=str(Path(options.dump) / name))
        self.pin()
        try:
            executable, values = self.prepare().bind(arguments)
            return executable.programs.program_for(values, target, options)
        finally:
            self.unpin()


@dataclass(eq=False, slots=True)
class TrieNode:
    """One record on a path. entry: if a definition ends here. visits: lookups that passed here."""

    record: OpRecord | None = None
    children: dict[OpRecord, TrieNode] = field(default_factory=dict)
    entry: FusionEntry | None = None
    visits: int = 0


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Hits, misses and evictions since the last reset; fusions, failures and nodes held now.

    visits: lookups that passed each node, in the order in which the cache prints the nodes.
    """

    fusions: int
    failed: int
    capacity: int
    nodes: int
    hits: int
    misses: int
    evictions: int
    visits: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"{self.fusions} fusions, {self.hits} hits, {self.misses} misses, "
            f"{self.evictions} evictions"
        )


class FusionCache:
    """At most `max_fusions` definitions; the least recently used are evicted. Thread-safe.

    `with FusionCache(max_fusions=3) as cache:` uses a private cache until the block ends, on all
    threads, because autograd runs backward on another one.
    """

    _shared: ClassVar[FusionCache | None] = None
    _private: ClassVar[list[FusionCache]] = []
    _class_lock = make_lock()

    def __init__(self, max_fusions: int | None = None) -> None:
        self._max_fusions = _checked_capacity(max_fusions)
        self._lock = make_lock()
        self._numbers = count()
        self._clear()

    def _clear(self) -> None:
        self.root = TrieNode()
        self.hits = self.misses = self.evictions = self._nodes = 0
        # By number, the least recently used first. Includes definitions that failed.
        self._leaves: OrderedDict[int, FusionEntry] = OrderedDict()
        # Evicted entries that are still referenced. A lookup returns them to the trie.
        self._evicted: WeakValueDictionary[Definition, FusionEntry] = WeakValueDictionary()

    # ---- which cache

    @staticmethod
    def get(max_fusions: int | None = None) -> FusionCache:
        """The cache in use: the innermost private one, else the process's.

        max_fusions: its capacity from now on. OptionError if it is below 1.
        """
        with FusionCache._class_lock:
            if FusionCache._private:
                cache = FusionCache._private[-1]
            else:
                cache = FusionCache._shared = FusionCache._shared or FusionCache()
        if max_fusions is not None:
            cache.set_capacity(max_fusions)
        return cache

    @staticmethod
    def reset() -> None:
        """Clears the cache in use. Existing callables keep working."""
        cache = FusionCache.get()
        with cache._lock:
            cache._clear()

    def __enter__(self) -> FusionCache:
        FusionCache._private.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        FusionCache._private.remove(self)

    # ---- look up

    @stage("look up")
    def look_up(self, definition: Definition) -> FusionEntry:
        """The entry of a definition, made on a miss. Raises the definition's error."""
        with self._lock:
            hits, evictions = self.hits, self.evictions
            entry = self._find(definition)
            entry.pin()
            is_hit, gone = self.hits > hits, self.evictions - evictions
        log("cache", lambda: _lookup_text(entry, is_hit, gone))
        try:
            entry.prepare()  # without the lock, so that other threads continue
        finally:
            entry.unpin()
        return entry

    def expect(self, definition: Definition) -> FusionEntry:
        """The entry of a definition, made before a call looks it up; that look-up is a miss."""
        with self._lock:
            node, depth = self._walk(definition)
            if node.entry is not None and depth == len(definition):
                return node.entry
            entry = self._add(node, depth, definition, visits=0)
            entry.is_expected = True
            return entry

    def interned(self, definition: Definition) -> Definition:
        """The cache's own object for an equal definition, so that callers share it; else the
        argument. Changes neither counts nor the LRU order."""
        with self._lock:
            node, depth = self._walk(definition)
        entry = node.entry if depth == len(definition) else None
        return definition if entry is None else entry.definition

    def _walk(self, definition: Definition, visits: int = 0) -> tuple[TrieNode, int]:
        """The last node on the definition's path that the trie has, and its depth.

        visits: is added to the visits of the nodes on the path.
        """
        node = self.root
        node.visits += visits
        for depth, record in enumerate(definition):
            child = node.children.get(record)
            if child is None:
                return node, depth
            node = child
            node.visits += visits
        return node, len(definition)

    def _find(self, definition: Definition) -> FusionEntry:
        node, depth = self._walk(definition, visits=1)
        if node.entry is None or depth < len(definition):
            self.misses += 1
            return self._add(node, depth, definition, visits=1)
        self.misses += node.entry.is_expected
        self.hits += not node.entry.is_expected
        node.entry.is_expected = False
        self._leaves.move_to_end(node.entry.number)
        return node.entry

    def _add(
        self, node: TrieNode, depth: int, definition: Definition, visits: int
    ) -> FusionEntry:
        """Adds the path behind the node of the first `depth` records, and the entry at its end."""
        hash(definition)  # an unhashable definition raises here, before the trie is changed
        entry = self._evicted.pop(definition, None)
        entry = entry or FusionEntry(definition, next(self._numbers))
        for record in definition[depth:]:
            node.children[record] = TrieNode(record, visits=visits)
            node = node.children[record]
            self._nodes += 1
        node.entry = self._leaves[entry.number] = entry
        self._evict(keep=entry)
        return entry

    # ---- evict

    def set_capacity(self, max_fusions: int) -> None:
        """Sets the capacity and evicts the excess."""
        with self._lock:
            self._max_fusions = _checked_capacity(max_fusions)
            self._evict()

    def _evict(self, keep: FusionEntry | None = None) -> None:
        """Evicts the least recently used leaves beyond the capacity. Skips those in use."""
        excess = len(self._leaves) - self._max_fusions
        if excess <= 0:
            return
        free = (entry for entry in self._leaves.values() if entry is not keep and not entry.users)
        for entry in [entry for entry, _ in zip(free, range(excess), strict=False)]:
            del self._leaves[entry.number]
            self._evicted[entry.definition] = entry
            self._prune(entry.definition)
            self.evictions += 1

    def _prune(self, definition: Definition) -> None:
        """Removes a definition's entry, and the nodes that lead to no other entry."""
        path = [self.root]
        for record in definition:
            path.append(path[-1].children[record])
        path[-1].entry = None
        for parent, node in zip(path[-2::-1], path[:0:-1], strict=True):
            if node.entry is not None or node.children:
                return
            assert node.record is not None
            del parent.children[node.record]
            self._nodes -= 1

    # ---- contents

    def num_fusions(self) -> int:
        """The number of definitions in the cache that have not failed."""
        return self.stats().fusions

    def stats(self) -> CacheStats:
        """The counts of lookups and of the cache's contents."""
        with self._lock:
            visits = tuple(node.visits for node, _ in self._in_order())
            failed = sum(entry.error is not None for entry in self._leaves.values())
            return CacheStats(
                len(self._leaves) - failed, failed, self._max_fusions, self._nodes,
                self.hits, self.misses, self.evictions, visits,
            )

    def __str__(self) -> str:
        head = str(self.stats())
        with self._lock:
            tree = [f"{'  ' * depth}{_line(node)}" for node, depth in self._in_order()]
        return "\n".join([head, *tree])

    def _in_order(self) -> Iterator[tuple[TrieNode, int]]:
        """Every node below the root, depth first, with its indent. The indent grows at forks."""
        stack = [(node, 0) for node in reversed(self.root.children.values())]
        if len(stack) > 1:
            stack = [(node, 1) for node, _ in stack]
        while stack:
            node, depth = stack.pop()
            yield node, depth
            below = depth + (len(node.children) > 1)
            stack += [(child, below) for child in reversed(node.children.values())]


def _lookup_text(entry: FusionEntry, is_hit: bool, gone: int) -> str:
    word = "hit" if is_hit else "miss"
    return f"definition {entry.number}: {word}" + (f", {gone} evicted" if gone else "")


def _line(node: TrieNode) -> str:
    entry = node.entry
    mark = "" if entry is None else f"  <- fusion {entry.number}" + " failed" * bool(entry.error)
    assert node.record is not None  # only the root has none
    return f"{record_text(node.record)} ({node.visits}){mark}"


def _checked_capacity(max_fusions: int | None) -> int:
    value = option("max_fusions") if max_fusions is None else max_fusions
    if type(value) is not int or value < 1:
        raise OptionError("max_fusions", expected="a number of at least 1", got=repr(value))
    return value
