# SPDX-License-Identifier: Apache-2.0
"""What a benchmark found: figures for the JSON, lines for the terminal, and failed checks."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Report:
    """Keeps a benchmark going past a section that fails, and remembers which did.

    facts: where, with what and by which command the figures were measured.
    path: the JSON. It is written again and again, so that a killed run leaves one.
    """

    def __init__(self, facts: Mapping[str, Any], path: str | None) -> None:
        self.facts, self._path = facts, path
        self.failed: list[str] = []
        self.lines: list[str] = []
        self.figures: dict[str, Any] = {}

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Prints the traceback of an exception, and swallows it. Then the JSON is written."""
        try:
            yield
        except Exception:
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
            self.failed.append(name)
        self.write()

    def check(self, name: str, passed: bool, detail: str) -> None:
        """Records a failed check."""
        if not passed:
            print(f"FAILED {name}: {detail}", flush=True)
            self.failed.append(name)

    def finish(self) -> int:
        """Prints the facts, the lines and what failed: 0, or 1 if something did."""
        self.write()
        print(facts_text(self.facts), "", *self.lines, sep="\n")
        if self.failed:
            print(f"{len(self.failed)} failed: {', '.join(self.failed)}")
        return int(bool(self.failed))

    def write(self) -> None:
        """The JSON, as far as it is known; through another name, so that no reader sees half."""
        if self._path is None:
            return
        content = {"facts": self.facts, "figures": self.figures, "failed": self.failed}
        place = Path(self._path)
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_name(place.name + ".part")
        text = json.dumps(_plain(content), indent=1, allow_nan=False)
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(place)


def facts_text(facts: Mapping[str, Any]) -> str:
    """A line for each fact."""
    return "\n".join(f"{name:18} {value}" for name, value in facts.items())


def _plain(value: Any) -> Any:
    """The same for JSON, which has no NaN: an error that is none becomes null.

    >>> _plain({"error": [math.nan, 1.0]})
    {'error': [None, 1.0]}
    """
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
