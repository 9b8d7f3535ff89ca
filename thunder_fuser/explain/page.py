# SPDX-License-Identifier: Apache-2.0
"""Reports as dicts -> one HTML page that needs nothing else: no other file, no network.

    write_page([report(jitted).to_dict()], "report.html")

page.html, page.css and page.js lie beside this file. All names from the user's program are escaped.
Should one slip through, the page's content security policy runs no script but page.js. A text that
several regions share is in the page once.
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
from thunder_fuser.explain.jitted import counted
from thunder_fuser.explain.shown import from_here, plural, shown_lines, size_text
from thunder_fuser.versions import __version__

Entries = Mapping[str, Any]  # what Report.to_dict() gives

_HERE = Path(__file__).parent
_CALLED = re.compile(r"(\w+)\(")
_GOLDEN_ANGLE = 137.508  # neighbours in the trace get hues far apart
_WIDTH, _HEIGHT, _MARGIN = 800, 180, 20  # of the picture of live memory


def write_page(reports: Sequence[Entries], path: str | Path, title: str = "") -> Path:
    """Writes the page of these reports, and returns its path.

    Raises ReportError if the file cannot be written.
    """
    check_path(path)
    text = page(reports, title)
    try:
        # A file name may hold bytes that are not valid text.
        Path(path).write_text(text, "utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise ReportError(
            str(path), expected="a file that can be written", got=error.strerror or str(error),
            do="name a file in a folder that you may write to",
        ) from error  # fmt: skip
    return Path(path)


def check_path(path: str | Path) -> None:
    """Raises ReportError if no page can be there: its folder does not exist, or the name is that of
    another kind of file. It is called before the slow work."""
    if Path(path).suffix.lower() not in ("", ".html", ".htm"):
        raise ReportError(
            str(path), expected="a name that ends in .html, since a page is HTML",
            got=Path(path).suffix, do="print a page as PDF in the browser that shows it",
        )  # fmt: skip
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise ReportError(
            str(path), expected="a folder that exists", got=str(folder), do=f"mkdir -p {folder}"
        )


def page(reports: Sequence[Entries], title: str = "") -> str:
    """The page's HTML. title: the subject of the reports; by default the function's name."""
    names = [entry["name"] for entry in reports]
    subject = title or (names[0] if len(names) == 1 else plural(len(names), "function"))
    script = (_HERE / "page.js").read_text("utf-8")
    return _template().render(
        reports=reports, title=f"Fusions of {subject}", version=__version__, texts=_Texts(),
        css=(_HERE / "page.css").read_text("utf-8"), script=script,
        # the form in which a content security policy names the only script that may run
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
    )  # fmt: skip


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "in_short": _in_short, "op_names": _op_names, "plural": plural,
        "rows": _rows, "from_here": from_here, "shown_lines": shown_lines, "size": size_text,
        "time": _time, "us": _microseconds,
    }  # fmt: skip
    environment.globals |= {"hue": _hue, "lines": trace_lines, "picture": picture}
    return environment.get_template("page.html")


def _hue(at: int) -> int:
    return round(at * _GOLDEN_ANGLE) % 360


@dataclass(frozen=True, slots=True)
class TraceLine:
    """A line of a trace. link: the name of the region that it calls; empty in the comments below
    the call. at: the number of that region; None in lines that belong to none."""

    before: str
    link: str
    after: str
    at: int | None


def trace_lines(report: Entries) -> Iterator[TraceLine]:
    """The traces' lines, with paths from the current folder. Comments below a call belong to it.

    Each region is called once, and regions are in the order of their calls. So of several regions
    with one name (in traces of several graphs), each call takes the first that is left.
    """
    places: dict[str, list[int]] = {}
    for number, fusion in enumerate(report["fusions"]):
        places.setdefault(fusion["name"].rpartition(".")[2], []).append(number)
    at: int | None = None
    depth = 0
    for line in from_here(report["trace"]).splitlines():
        indent = len(line) - len(line.lstrip())
        name = next((name for name in _CALLED.findall(line) if places.get(name)), "")
        if name:
            at, depth = places[name].pop(0), indent
        elif not line.lstrip().startswith("#") or indent <= depth:
            at = None
        yield TraceLine(*(line.partition(name) if name else (line, "", "")), at)


def _in_short(report: Entries) -> str:
    """The regions by state, the bytes that their kernels move, and the kernels' times."""
    fusions = report["fusions"]
    kernels = [kernel for fusion in fusions for kernel in fusion["kernels"]]
    states = Counter(fusion["state"] for fusion in fusions)
    parts = [f"{count} {state}" for state, count in states.items()]
    moved = sum(fusion["bytes_in"] + fusion["bytes_out"] for fusion in fusions)
    parts += [plural(len(kernels), "kernel"), f"{size_text(moved)} read and written"]
    parts.append(_time(kernels))
    return f"{plural(len(fusions), 'region')}: {', '.join(parts)}."


def _time(kernels: Sequence[Entries]) -> str:
    """The time of these kernels: measured if all were, else estimated."""
    is_measured = bool(kernels) and all(kernel["measured_us"] is not None for kernel in kernels)
    how = "measured" if is_measured else "estimated"
    return _microseconds(sum(kernel[f"{how}_us"] for kernel in kernels), how)


def _op_names(ops: Sequence[Entries]) -> str:
    """t1 = prims.exp(t0), t2 = prims.exp(t1)  ->  exp*2"""
    calls = (_CALLED.search(op["text"]) for op in ops)
    return counted(call[1] for call in calls if call)


def _microseconds(value: float | None, how: str) -> str:
    """(1.5, "measured")  ->  1.5 us measured"""
    return f"not {how}" if value is None else f"{value:.1f} us {how}"


def _rows(entries: Sequence[Entries], *columns: str) -> list[list[str]]:
    """A row of cells for each entry, in the order of the columns."""
    return [[_cell(column, entry[column]) for column in columns] for entry in entries]


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


class _Texts:
    """Numbers the texts of a page: each text once, with the regions that have it."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.all: list[Text] = []

    def number(self, content: str, what: str, region: str, link: str) -> int:
        """The text's number in the page; a new text gets the name `what`."""
        number = self._numbers.setdefault(content, len(self.all))
        if number == len(self.all):
            self.all.append(Text(content, what, {}))
        self.all[number].regions[link] = region
        return number


@dataclass(frozen=True, slots=True)
class Text:
    """A source, plan, schedule or definition. regions: {link: name} of the regions that have it."""

    content: str
    what: str
    regions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Picture:
    """Live memory as an area under steps, a step for each call.

    middle: the line between forward and backward; peak: the highest place; calls: (name, pass,
    bytes live after it) in order.
    """

    area: str
    middle: float
    peak: tuple[float, float]
    label: str
    calls: tuple[tuple[str, str, str], ...]
    width: int = _WIDTH
    height: int = _HEIGHT
    bottom: int = _HEIGHT - _MARGIN


def picture(calls: Sequence[Mapping[str, Any]]) -> Picture:
    """The picture of at least one call. Each is a {"call", "direction", "bytes"}, in order."""
    step, bottom = _WIDTH / len(calls), _HEIGHT - _MARGIN
    sizes = [call["bytes"] for call in calls]
    most = max(sizes)
    highest = sizes.index(most)
    tops = (f"V{_top(size, most):.1f}H{(at + 1) * step:.1f}" for at, size in enumerate(sizes))
    forward = sum(call["direction"] == "forward" for call in calls)
    return Picture(
        area=f"M0 {bottom}{''.join(tops)}V{bottom}Z",
        middle=round(forward * step, 1),
        peak=(round((highest + 0.5) * step, 1), _top(most, most)),
        label="Live memory, without arguments:"
        f" at most {size_text(most)}, after {calls[highest]['call']}",
        calls=tuple((call["call"], call["direction"], size_text(call["bytes"])) for call in calls),
    )


def _top(count: int, most: int) -> float:
    """The vertical place of so many bytes, from above."""
    high = _HEIGHT - 2 * _MARGIN
    return _MARGIN + high - high * count / (most or 1)
