# SPDX-License-Identifier: Apache-2.0
"""What a part found: figures for the JSON, lines for the table, and the checks that failed."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from thunder_fuser.explain.bench.run import write_json


class Sections:
    """Keeps a part going past a section that fails, and remembers which did."""

    def __init__(self, facts: dict[str, Any], path: str | None) -> None:
        self.failed: list[str] = []
        self.lines: list[str] = []
        self.figures: dict[str, Any] = {}
        self._facts, self._path = facts, path

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
        """Prints the lines and what failed: 0, or 1 if something did."""
        self.write()
        print("\n".join(self.lines))
        if self.failed:
            print(f"{len(self.failed)} failed: {', '.join(self.failed)}")
        return int(bool(self.failed))

    def write(self) -> None:
        """The JSON, as far as it is known."""
        if self._path is not None:
            content = {"facts": self._facts, "figures": self.figures, "failed": self.failed}
            write_json(self._path, content)
