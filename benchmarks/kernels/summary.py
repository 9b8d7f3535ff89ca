# SPDX-License-Identifier: Apache-2.0
"""Figures -> the text of a run: a table, means for each group, the worst points, the gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.kernels.figure import (
    CLONE,
    COMPILE,
    EAGER,
    OURS,
    READ,
    TUNED,
    Figure,
)
from benchmarks.kernels.gates import Verdict, geometric_mean, verdicts, worst
from thunder_fuser.explain.shown import table

OTHERS = (CLONE, READ, EAGER, COMPILE, TUNED)
_NONE = "-"


def figure_table(figures: Sequence[Figure]) -> str:
    """A line a point, by operation, dtype and size. docs/benchmarks.md says what columns mean."""
    ordered = sorted(figures, key=lambda f: (f.group, f.op, f.dtype, f.shape[-1], f.shape))
    columns = [column for column in _columns(ordered) if column[0] != _NONE]
    rows = [tuple(cell(figure) for _, cell in columns) for figure in ordered]
    return table([name for name, _ in columns], rows)


Column = tuple[str, Callable[[Figure], str]]


def _columns(figures: Sequence[Figure]) -> list[Column]:
    timed = {name for figure in figures for name in (*figure.us, *figure.wrong, *figure.broken)}
    fresh = any(figure.us_fresh for figure in figures)
    return [
        ("op", lambda f: f.op),
        ("type", lambda f: f.dtype),
        ("shape", lambda f: "x".join(map(str, f.shape))),
        ("us", lambda f: _us(f, OURS)),
        ("p20", lambda f: f"{f.us[OURS].p20:.1f}" if OURS in f.us else _NONE),
        ("p80", lambda f: f"{f.us[OURS].p80:.1f}" if OURS in f.us else _NONE),
        ("us fresh" if fresh else _NONE, _us_fresh),
        ("GB/s", lambda f: f"{f.bytes / f.us[OURS].us / 1e3:.1f}" if OURS in f.us else _NONE),
        ("% clone" if CLONE in timed else _NONE, lambda f: _percent(f, CLONE)),
        ("% read" if READ in timed else _NONE, lambda f: _percent(f, READ)),
        *((f"x {n}" if n in timed else _NONE, _faster_than(n)) for n in (EAGER, COMPILE, TUNED)),
        ("", _remark),
    ]


def _us(figure: Figure, name: str) -> str:
    if name in figure.wrong:
        return "WRONG"
    return f"{figure.us[name].us:.1f}" if name in figure.us else _NONE


def _us_fresh(figure: Figure) -> str:
    return f"{figure.us_fresh[OURS].us:.1f}" if OURS in figure.us_fresh else _NONE


def _percent(figure: Figure, other: str) -> str:
    share = figure.times_faster(other)
    return _NONE if share is None else f"{100 * share:.1f}"


def _faster_than(other: str) -> Callable[[Figure], str]:
    def cell(figure: Figure) -> str:
        if other in figure.wrong:
            return "WRONG"
        if other in figure.broken:
            return "failed"
        share = figure.times_faster(other)
        return _NONE if share is None else f"{share:.2f}"

    return cell


def _remark(figure: Figure) -> str:
    """Why it was not measured, else the schedulers of its kernels."""
    if figure.state != "measured":
        return f"{figure.state}: {figure.note}"
    return " ".join(figure.schedulers)


def means_table(figures: Sequence[Figure]) -> str:
    """Geometric means of how many times faster ours is, for each group and for all."""
    groups = dict.fromkeys(figure.group for figure in figures)
    others = [name for name in OTHERS if any(name in figure.us for figure in figures)]
    rows = [
        _means_row(group, [f for f in figures if f.group == group], others) for group in groups
    ]
    rows.append(_means_row("all", figures, others))
    return table(("group", "points", *(f"t_{name}/t_ours" for name in others)), rows)


def _means_row(name: str, figures: Sequence[Figure], others: Sequence[str]) -> tuple[str, ...]:
    means = (geometric_mean(figures, other)[0] for other in others)
    points = sum(OURS in figure.us for figure in figures)
    return (name, str(points), *(_NONE if mean is None else f"{mean:.3f}" for mean in means))


def worst_table(figures: Sequence[Figure]) -> str:
    """The five worst points against each other contender."""
    rows = [
        (other, f"{share:.2f}", title) for other in OTHERS for title, share in worst(figures, other)
    ]
    return table(("against", "times faster", "point"), rows)


def gate_table(found: Sequence[Verdict]) -> str:
    """A line a gate; a missed one names its points, worst first."""
    return table(("gate", "bound", "state", "points", "lowest", "missed by"), [
        (
            one.name, one.bound, one.state, str(one.points),
            _NONE if one.lowest is None else f"{one.lowest:.3f}",
            ", ".join(
                f"{title} {share:.2f}" for title, share in sorted(one.misses, key=lambda m: m[1])
            ),
        )
        for one in found
    ])


def summary(figures: Sequence[Figure], device: str) -> str:
    """All of the above. The gates are about GPUs."""
    wrong = [
        (figure.title, name, why)
        for figure in figures for name, why in {**figure.wrong, **figure.broken}.items()
    ]
    parts = [figure_table(figures)]
    if any(figure.us for figure in figures):
        parts += [
            f"Geometric means\n{means_table(figures)}", f"Worst points\n{worst_table(figures)}"
        ]
    if wrong:
        parts.append(f"Not timed\n{table(('point', 'contender', 'why'), wrong)}")
    if device == "cuda":
        parts.append(f"Gates\n{gate_table(verdicts(figures))}")
    return "\n\n".join(parts)
