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

from thunder_fuser.errors import ReportError
from thunder_fuser.executors.traces import counted
from thunder_fuser.explain.picture import picture
from thunder_fuser.explain.shown import from_here
from thunder_fuser.explain.table import plural, size_text
from thunder_fuser.versions import __version__

Entries = Mapping[str, Any]  # what Report.to_dict() gives

_HERE = Path(__file__).parent
_CALLED = re.compile(r"(\w+)\(")
_GOLDEN_ANGLE = 137.508  # neighbours in the trace get hues far apart


def write_page(reports: Sequence[Entries], path: str | Path, title: str = "") -> Path:
    """Writes the page of these reports, and returns its path.

    Raises ReportError if the file cannot be written.
    """
    check_folder(path)
    text = page(reports, title)
    try:
        # A name of a file may hold bytes that are no text.
        Path(path).write_text(text, "utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise ReportError(
            str(path), expected="a file that can be written", got=error.strerror or str(error),
            do="name a file in a folder that you may write to",
        ) from error  # fmt: skip
    return Path(path)


def check_folder(path: str | Path) -> None:
    """Raises ReportError if a page's folder does not exist: before all that takes time."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise ReportError(
            str(path), expected="a folder that exists", got=str(folder), do=f"mkdir -p {folder}"
        )


def page(reports: Sequence[Entries], title: str = "") -> str:
    """The page's HTML; `title` names what the reports are on, by default the only function."""
    names = [one["name"] for one in reports]
    subject = title or (names[0] if len(names) == 1 else plural(len(names), "function"))
    script = (_HERE / "page.js").read_text("utf-8")
    return _template().render(
        reports=reports, title=f"Fusions of {subject}", version=__version__, texts=_Texts(),
        css=(_HERE / "page.css").read_text("utf-8"), script=script,
        # as a content security policy names the only script that may run
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
    )  # fmt: skip


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "in_short": _in_short, "op_names": _op_names, "parts": _parts, "plural": plural,
        "rows": _rows, "from_here": from_here, "size": size_text, "us": _microseconds,
    }  # fmt: skip
    environment.globals |= {"hue": _hue, "lines": trace_lines, "picture": picture}
    return environment.get_template("page.html")


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
    """The traces' lines, files by their path from here. Comments below a call belong to it.

    Each region is called once, and the regions are in the order of their calls: where a trace of
    another graph has a region of the same name, that one comes later.
    """
    places: dict[str, list[int]] = {}
    for number, one in enumerate(report["fusions"]):
        places.setdefault(one["name"].rpartition(".")[2], []).append(number)
    at: int | None = None
    depth = 0
    for line in from_here(report["trace"]).splitlines():
        indent = len(line) - len(line.lstrip())
        name = next((name for name in _CALLED.findall(line) if places.get(name)), "")
        if name:
            at, depth = places[name].pop(0), indent
        elif not line.lstrip().startswith("#") or indent <= depth:
            at = None
        yield Line(*(line.partition(name) if name else (line, "", "")), at)


def _in_short(report: Entries) -> str:
    """How many regions are in which state, and what their kernels move and take."""
    fusions = report["fusions"]
    kernels = [kernel for one in fusions for kernel in one["kernels"]]
    states = Counter(one["state"] for one in fusions)
    parts = [f"{count} {state}" for state, count in states.items()]
    moved = sum(one["bytes_in"] + one["bytes_out"] for one in fusions)
    parts += [plural(len(kernels), "kernel"), f"{size_text(moved)} read and written"]
    parts.append(f"{sum(one['estimated_us'] for one in kernels):.1f} us estimated")
    if kernels and all(one["measured_us"] is not None for one in kernels):
        parts.append(f"{sum(one['measured_us'] for one in kernels):.1f} us measured")
    return f"{plural(len(fusions), 'region')}: {', '.join(parts)}."


def _op_names(ops: Sequence[Entries]) -> str:
    """t1 = prims.exp(t0), t2 = prims.exp(t1)  ->  exp*2"""
    found = (_CALLED.search(one["text"]) for one in ops)
    return counted(one[1] for one in found if one)


def _microseconds(value: float | None, how: str) -> str:
    """(1.5, "measured")  ->  1.5 us measured"""
    return f"not {how}" if value is None else f"{value:.1f} us {how}"


def _rows(entries: Sequence[Entries], *columns: str) -> list[list[str]]:
    """Cells in the order of the columns."""
    return [[_cell(column, one[column]) for column in columns] for one in entries]


def _cell(column: str, value: Any) -> str:
    match column:
        case "bytes":
            return size_text(value)
        case "where":
            return from_here(value)
        case "ops":
            return counted(value)
        case "values":
            return ", ".join(value)
    return str(value)


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
