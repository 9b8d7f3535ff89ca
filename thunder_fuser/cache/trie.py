# SPDX-License-Identifier: Apache-2.0
"""The trie over op records: definitions that begin alike share a path; a leaf holds the entry.

define_tensor - define_tensor - add - add_output*          two definitions, five records,
                              \\ mul - add_output*          six nodes: the first two are shared
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from thunder_fuser.cache.entry import FusionEntry
from thunder_fuser.ir.record import Definition, OpRecord, record_text
from thunder_fuser.stages import stage


@dataclass
class TrieNode:
    """One record on a path; `entry` if a definition ends here."""

    record: OpRecord | None = None
    children: dict[OpRecord, TrieNode] = field(default_factory=dict)
    entry: FusionEntry | None = None
    error: Exception | None = None
    visits: int = 0


class FusionCache:
    """All definitions seen by this process. IR is made only for a new leaf."""

    _shared: FusionCache | None = None

    def __init__(self) -> None:
        self.root = TrieNode()
        self.hits = 0
        self.misses = 0
        self._lock = threading.RLock()
        self._count = 0

    @staticmethod
    def get() -> FusionCache:
        """The process's cache."""
        if FusionCache._shared is None:
            FusionCache._shared = FusionCache()
        return FusionCache._shared

    @staticmethod
    def reset() -> None:
        """Forgets every definition; callables already handed out keep working."""
        FusionCache._shared = None

    @stage("look up")
    def look_up(self, definition: Definition) -> FusionEntry:
        """The entry of a definition; its error again, if it had one."""
        with self._lock:
            node = self._walk(definition)
            if node.error is not None:
                self.hits += 1
                raise node.error
            if node.entry is not None:
                self.hits += 1
                return node.entry
            self.misses += 1
            return self._new_leaf(node, definition)

    def num_fusions(self) -> int:
        """How many definitions have an entry."""
        return self._count

    def num_nodes(self) -> int:
        """How many records the paths hold together."""
        return sum(1 for _ in self._nodes(self.root)) - 1

    def __str__(self) -> str:
        lines = [f"{self._count} fusions, {self.hits} hits, {self.misses} misses"]
        return "\n".join([*lines, *self._tree(self.root, 0)])

    def _walk(self, definition: Definition) -> TrieNode:
        node = self.root
        for record in definition:
            node.visits += 1
            child = node.children.get(record)
            if child is None:
                child = node.children[record] = TrieNode(record)
            node = child
        node.visits += 1
        return node

    def _new_leaf(self, node: TrieNode, definition: Definition) -> FusionEntry:
        try:
            node.entry = FusionEntry(definition, self._count)
        except ValueError as error:
            node.error = error
            raise
        self._count += 1
        return node.entry

    def _nodes(self, node: TrieNode) -> Iterator[TrieNode]:
        yield node
        for child in node.children.values():
            yield from self._nodes(child)

    def _tree(self, node: TrieNode, depth: int) -> Iterator[str]:
        if node.record is not None:
            mark = f"  <- fusion {node.entry.number}" if node.entry else ""
            yield f"{'  ' * depth}{record_text(node.record)} ({node.visits}){mark}"
        for child in node.children.values():
            yield from self._tree(child, depth + (len(node.children) > 1))
