# SPDX-License-Identifier: Apache-2.0
"""Reports as dicts -> one HTML page that needs nothing else: no other file, no network.

    write_page([report(jitted).to_dict()], "report.html")

page.html, page.css and page.js lie beside this file. Everything a user named is escaped; should
something slip through, the page's content security policy lets no script run but page.js. A text
that several regions have is in the page once.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from thunder_fuser.errors import ReportError
from thunder_fuser.executors.traces import counted
from thunder_fuser.explain.picture import picture
from thunder_fuser.explain.table import plural, size_text
from thunder_fuser.versions import __version__

Entries = Mapping[str, Any]  # what Report.to_dict() gives

_HERE = Path(__file__).parent
_OP_NAME = re.compile(r"(\w+)\(")
_GOLDEN_ANGLE = 137.508  # neighbours in the trace get hues far apart


def write_page(reports: Sequence[Entries], path: str | Path, title: str = "") -> Path:
    """Writes the page of these reports, and returns its path.

    Raises ReportError if the file cannot be written.
    """
    path = Path(path)
    try:
        # A name of a file may hold bytes that are no text.
        path.write_text(page(reports, title), "utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise ReportError(
            str(path), expected="a file that can be written", got=error.strerror or str(error),
            do=_advice(path),
        ) from error
    return path


def _advice(path: Path) -> str:
    if not path.parent.is_dir():
        return f"make the folder {path.parent.absolute()}, or name another one"
    return "name a file in a folder that you may write to"


def page(reports: Sequence[Entries], title: str = "") -> str:
    """The page's HTML; `title` names what the reports are on, by default the only function."""
    names = [one["name"] for one in reports]
    subject = title or (names[0] if len(names) == 1 else plural(len(names), "function"))
    texts, script = _Texts(), (_HERE / "page.js").read_text("utf-8")
    return _template().render(
        reports=reports, title=f"Fusions of {subject}", version=__version__, texts=texts, script=Markup(script),
        script_hash=_hash(script), css=Markup((_HERE / "page.css").read_text("utf-8")),
    )  # fmt: skip


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "in_short": _in_short, "op_names": _op_names, "parts": _parts, "plural": plural,
        "rows": _rows, "size": size_text, "us": _microseconds,
    }
    environment.globals |= {"hue": _hue, "lines": trace_lines, "picture": picture}
    return environment.get_template("page.html")


def _hash(script: str) -> str:
    """As a content security policy names the only script that may run."""
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"


def _hue(at: int) -> int:
    return round(at * _GOLDEN_ANGLE) % 360


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a trace: `link` is the name of the region that it calls, the `at`-th one.

    at: None outside of regions; link: empty in the lines that tell a region's operations.
    """

    before: str
    link: str
    after: str
    at: int | None


def trace_lines(report: Entries) -> Iterator[Line]:
    """The trace's lines. Comments under a call belong to it."""
    places = {one["name"]: at for at, one in enumerate(report["fusions"])}
    at: int | None = None
    for line in report["trace"].splitlines():
        name = next((word for word in re.findall(r"\w+", line) if word in places), "")
        is_comment = line.lstrip().startswith("#")
        at = at if is_comment else places.get(name)
        before, link, after = line.partition(name) if name and not is_comment else (line, "", "")
        yield Line(before, link, after, at)


def _in_short(report: Entries) -> str:
    """How many regions are in which state, their kernels, and how many operations are refused."""
    states = Counter(one["state"] for one in report["fusions"])
    parts = [f"{plural(len(report['fusions']), 'region')}"]
    parts[0] += "".join(f", {count} {state}" for state, count in states.items())
    parts.append(plural(sum(len(one["kernels"]) for one in report["fusions"]), "kernel"))
    parts.append(f"{plural(sum(one['count'] for one in report['unfused']), 'operation')} not fused")
    return "; ".join(parts)


def _op_names(ops: Sequence[Entries]) -> str:
    """t1 = prims.exp(t0), t2 = prims.exp(t1)  ->  exp*2"""
    found = (_OP_NAME.search(one["text"]) for one in ops)
    return counted(one[1] for one in found if one)


def _microseconds(value: float | None, how: str) -> str:
    """(1.5, "measured")  ->  1.5 us measured"""
    return f"not {how}" if value is None else f"{value:.1f} us {how}"


def _rows(entries: Sequence[Entries], *columns: str) -> list[list[Any]]:
    """Cells in the order of the columns; sequences as words, what is missing as nothing."""
    return [[_cell(one.get(column), column) for column in columns] for one in entries]


def _cell(value: Any, column: str) -> Any:
    if column.startswith("bytes"):
        return size_text(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else value


def _parts(stages: Mapping[str, float]) -> Iterator[tuple[str, float, int]]:
    """(stage, seconds, percent of all), the longest first."""
    whole = sum(stages.values()) or 1.0
    for name, seconds in sorted(stages.items(), key=lambda one: -one[1]):
        yield name, seconds, round(100 * seconds / whole)


class _Texts:
    """Texts with numbers: each once, with the regions that have it."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.all: list[Text] = []

    def number(self, content: str, what: str, region: str, link: str) -> int:
        """The text's number in the page; `what` names it if it is new."""
        number = self._numbers.setdefault(content, len(self.all))
        if number == len(self.all):
            self.all.append(Text(content, what, {}))
        self.all[number].regions[link] = region
        return number


@dataclass(frozen=True, slots=True)
class Text:
    """A source, plan, schedule or definition; regions: {link: name} of those that have it."""

    content: str
    what: str
    regions: dict[str, str]
