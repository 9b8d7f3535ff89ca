# SPDX-License-Identifier: Apache-2.0
"""This machine and its store of compiled kernels -> the texts of the commands env and cache."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from thunder_fuser.communication.products.bandwidths import kept
from thunder_fuser.communication.transport.buffers import CACHE
from thunder_fuser.errors import FuserError, InputError, OptionError
from thunder_fuser.explain.shown import kib, table
from thunder_fuser.host.call.native import why_not_native
from thunder_fuser.options import OPTIONS, Option, option, unknown_variables
from thunder_fuser.runtime.cuda import nvrtc_version
from thunder_fuser.runtime.toolchain import find_compiler
from thunder_fuser.source.jit_options import problem_of, unknown
from thunder_fuser.store.inspection import export_entries, import_entries, nearest
from thunder_fuser.store.store import Store, Stored, current_store
from thunder_fuser.thunder_patches.door import left_alone
from thunder_fuser.versions import __version__

_PACKAGES = ("lightning-thunder", "cuda-bindings", "cuda-core", "nvtx")
_SHOWN_KEY = 12
_MISS = ("is compiled", "is an error: the option assert_cache_hit is set")
_COLUMNS, _NAMES, _VALUES = 96, 20, 20  # of the tables of `env`
_MEANINGS = _COLUMNS - _NAMES - _VALUES - 2
_HOW_TO_SET = (
    "  To set an option: THUNDER_FUSER_STRICT=1, thunder.jit(f, fuser_strict=True), or\n"
    "  with thunder_fuser.options(strict=True)"
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def environment() -> tuple[str, bool]:
    """(the text to put into a bug report, whether every option has a valid value)"""
    rows = [
        ("thunder_fuser", __version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        *((name, package_version(name)) for name in _PACKAGES),
        ("NVRTC", _version_shown(lambda: "{}.{}".format(*nvrtc_version()))),
        ("compiler", _version_shown(lambda: "{0.version} ({0.path})".format(find_compiler()))),
        ("calls", _version_shown(_calls)),
        ("device", _device()),
        *(("Thunder's own way", f"no {name}: {why}") for name, why in left_alone().items()),
    ]
    problems = {name: text for name in OPTIONS if (text := problem_of(name))}
    wrong = [*problems.values(), *(unknown(*pair) for pair in unknown_variables().items())]
    options = [_option_row(row, name in problems) for name, row in OPTIONS.items()]
    tables = (
        table(("what", "found"), rows, (_NAMES, _COLUMNS - _NAMES)),
        table(("option", "value", "meaning"), options, (_NAMES, _VALUES, _MEANINGS)),
        _HOW_TO_SET, *(f"WRONG: {text}" for text in wrong),
    )  # fmt: skip
    return "\n\n".join(tables), not wrong


def _option_row(row: Option, is_wrong: bool) -> tuple[str, str, str]:
    value = f"WRONG: {os.environ.get(row.env)!r}" if is_wrong else repr(option(row.name))
    return row.name, value, row.help


def _calls() -> str:
    why = why_not_native()
    return f"in Python: {why}" if why else "in C"


def package_version(package: str) -> str:
    """The package's version, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _version_shown(version_text: Callable[[], str]) -> str:
    """The version text of a tool, or why there is none."""
    try:
        return version_text()
    except FuserError as error:
        return error.sentence


def _device() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU, {torch.get_num_threads()} threads (no CUDA device)"


def _store() -> Store:
    """The store in use; OptionError if the option cache is off."""
    store = current_store()
    if store is None:
        raise OptionError("option cache", expected="rw or ro", got="off")
    return store


def info() -> str:
    """The text of `cache info`: where the store is, how it is used and what it holds."""
    store = _store()
    held = store.stored_files()
    kinds = Counter(_kind(entry) for entry in store.entries())
    rows = [
        ("folder", str(store.root) + ("" if store.root.exists() else " (not made yet)")),
        ("mode", store.mode),
        ("entries", ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())) or "none"),
        ("KiB", f"{kib(sum(file.size for file in held))} of {kib(store.most_bytes)}"),
        ("rates of machines", str(kept(store))),
        ("memory shared with ranks, here", str(CACHE)),
        ("a kernel that is not stored", _MISS[bool(option("assert_cache_hit"))]),
    ]
    return table(("what", "found"), rows)


def _kind(stored: Stored) -> str:
    if stored.entry is None:
        return "damaged"
    kinds = {"library": "CPU library", "plan": "plan of a fusion"}
    kind = stored.entry.fields["kind"]
    return kinds.get(kind, kind)


def listing(pattern: str = "") -> str:
    """A line for each entry whose fields contain the pattern, the least recently used first."""
    rows = []
    for item in _store().entries():
        fields = dict(item.entry.fields) if item.entry else {}
        shown = (fields.get("name", item.problem), fields.get("kind", "damaged"))
        where = fields.get("arch", "").split(",")[0]
        row = (item.key[:_SHOWN_KEY], *shown, where, kib(item.file.size), _age(item.file.used))
        if pattern in " ".join([item.key, *map(str, fields.values())]):
            rows.append(row)
    return table(("key", "kernel", "kind", "arch", "KiB", "used"), rows)


def _age(used: float) -> str:
    """How long ago, in the largest unit that gives a whole number."""
    seconds = max(time.time() - used, 0)
    unit = next((u for u in ("d", "h", "m") if seconds >= _SECONDS[u]), "s")
    return f"{seconds // _SECONDS[unit]:.0f}{unit} ago"


def verify(*, remove: bool) -> tuple[str, bool]:
    """Reads every entry -> (a text that names the damaged ones, whether there is none)."""
    store = _store()
    bad, good = [], 0
    for item in store.entries():
        good += item.entry is not None
        if item.entry is None:
            bad.append((item.key[:_SHOWN_KEY], item.problem))
            if remove:
                store.remove(item)
    texts = [f"intact: {_entries(good)}"]
    if bad:
        texts += [table(("removed" if remove else "damaged", "why"), bad)]
    return "\n".join(texts), not bad


def prune(megabytes: int) -> str:
    """Evicts the least recently used entries until the store has at most this size."""
    return _removed(_store().prune(megabytes << 20) if _store().root.exists() else (0, 0))


def clear() -> str:
    """Removes every entry."""
    return _removed(_store().clear())


def _removed(gone: tuple[int, int]) -> str:
    return f"{_entries(gone[0])} removed, {kib(gone[1])} KiB"


def export_to(archive: Path, *, libraries: bool) -> str:
    """Writes the entries into one file."""
    written, left = export_entries(_store(), archive, libraries=libraries)
    return f"{_entries(written)} in {archive}{_left_out(left, libraries)}"


def import_from(archive: Path, *, libraries: bool) -> str:
    """Adds the entries of a file."""
    added, there, left = import_entries(_store(), archive, libraries=libraries)
    already = f"; {there} already there" if there else ""
    return f"{_entries(added)} added{already}{_left_out(left, libraries)}"


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _left_out(count: int, libraries: bool) -> str:
    why = "damaged" if libraries else "damaged, or CPU libraries, which need --libraries"
    return f"; {count} left out: {why}" if count else ""


def explain(key: str = "") -> str:
    """The entry whose key begins with this text, or the newest; and how the nearest one differs."""
    entries = list(_store().entries())
    matching = [(item, item.entry) for item in entries if item.entry and item.key.startswith(key)]
    if not matching:
        raise InputError("cache explain", expected="the beginning of a key", got=repr(key))
    newest, entry = max(matching, key=lambda pair: pair[0].file.used)
    fields = table(("field", "value"), list(entry.fields.items()))
    near = nearest(entry.fields, entry.text, [item for item in entries if item.key != newest.key])
    difference = "there is no other entry" if near is None else str(near)
    return f"entry {newest.key}\n\n{fields}\n\n{difference}"
