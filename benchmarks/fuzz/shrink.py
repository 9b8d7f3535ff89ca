# SPDX-License-Identifier: Apache-2.0
"""A failing program -> the smallest found that fails in the same way."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from benchmarks.fuzz.program import Input, Program, Statement, slots

P = TypeVar("P")

SIMPLE_NUMBERS = ("2", "1", "0", "-1")
SIMPLE_SHAPES = ((), (1,), (2,), (3,), (2, 2), (2, 3))


def shrink(
    program: P,
    candidates: Callable[[P], Iterator[P]],
    fails: Callable[[P], bool],
    tries: int,
    seconds: float,
) -> P:
    """Takes the first simpler program that fails, again and again, until a limit is met."""
    left, seen, stop = tries, {program}, time.monotonic() + seconds
    while left > 0:
        for simpler in candidates(program):
            if simpler in seen:
                continue
            seen.add(simpler)
            left -= 1
            if fails(simpler):
                program = simpler
                break
            if left <= 0 or time.monotonic() > stop:
                return program
        else:
            return program
    return program


def simpler_programs(program: Program) -> Iterator[Program]:
    """Programs with less in them, the largest steps first."""
    yield from _plainer(program)
    yield from (_without_gone(one) for one in _fewer_results(program))
    yield from (_without_gone(one) for one in _fewer_statements(program))
    yield from _fewer_calls(program)
    yield from _fewer_inputs(program)
    yield from _simpler_operands(program)
    yield from _simpler_inputs(program)


def _plainer(program: Program) -> Iterator[Program]:
    """Without other executors and options, or without the writes after the forward."""
    options = tuple(one for one in program.options if one[0] == "fuser_emulate")
    plain = replace(program, jit="thunder.jit", executors=("fuser",), options=options)
    if plain != program:
        yield plain
    for one in (program, plain):
        for at in range(len(one.between)):
            yield replace(one, between=one.between[:at] + one.between[at + 1 :])


def _without_gone(program: Program) -> Program:
    """Without writes into results that there are no more."""
    names = {*program.results, *(one.name for one in program.inputs)}
    kept = tuple(one for one in program.between if names.issuperset(reads(one)))
    return replace(program, between=kept)


def about(program: Program, where: str) -> Program:
    """What a value needs, and the writes beside it: what is left of the program for one failure."""
    kind, _, name = where.partition(" ")
    if kind != "result" or name not in program.results:
        return program
    needed, kept = {name}, list[Statement]()
    for one in reversed(program.statements):
        if one.target in needed or (not one.target and set(reads(one)) & needed):
            needed.update(reads(one))
            kept.append(one)
    results = (name,) if any(name == one.target for one in kept) else ()
    return _without_gone(without_unused_inputs(
        replace(program, statements=tuple(reversed(kept)), results=results or (name,))
    ))  # fmt: skip


def reads(statement: Statement) -> list[str]:
    """The names a statement mentions."""
    return [name for text in statement.operands for name in re.findall(r"[a-z]\w*", text)]


def without_unused_inputs(program: Program) -> Program:
    used = {name for one in program.statements for name in reads(one)} | set(program.results)
    used |= {name for one in program.between for name in reads(one)}
    used |= {one.same_as for one in program.inputs if one.name in used}
    kept = tuple(one for one in program.inputs if one.name in used)
    return replace(program, inputs=kept) if any(one.dtype for one in kept) else program


def _fewer_results(program: Program) -> Iterator[Program]:
    if len(program.results) > 1:
        for name in program.results:
            yield about(program, f"result {name}")
        for name in program.results:
            left = tuple(one for one in program.results if one != name)
            yield replace(program, results=left)
    elif program.results:
        yield replace(program, results=())


def _fewer_statements(program: Program) -> Iterator[Program]:
    for at in reversed(range(len(program.statements))):
        gone, kept = {program.statements[at].target} - {""}, list(program.statements[:at])
        for one in program.statements[at + 1 :]:
            if gone & set(reads(one)):
                gone |= {one.target} - {""}
            else:
                kept.append(one)
        results = tuple(name for name in program.results if name not in gone)
        if kept:
            yield replace(program, statements=tuple(kept), results=results)
    yield from _bypassed(program)


def _bypassed(program: Program) -> Iterator[Program]:
    """Without a statement, whose readers read what it read first."""
    for gone in program.statements:
        source = next(iter(reads(gone)), "")
        if not gone.target or not source or len(program.statements) == 1:
            continue
        kept = [
            replace(one, operands=tuple(source if o == gone.target else o for o in one.operands))
            for one in program.statements
            if one is not gone
        ]
        names = [source if name == gone.target else name for name in program.results]
        made = {one.target for one in kept}
        results = tuple(dict.fromkeys(name for name in names if name in made))
        yield replace(program, statements=tuple(kept), results=results)


def _fewer_calls(program: Program) -> Iterator[Program]:
    if program.calls < 2:
        return
    for call in range(program.calls):
        yield replace(
            program,
            inputs=tuple(
                replace(one, layouts=one.layouts[call : call + 1]) if one.dtype else one
                for one in program.inputs
            ),
        )


def _fewer_inputs(program: Program) -> Iterator[Program]:
    smaller = without_unused_inputs(program)
    if smaller != program:
        yield smaller
    tensors = [one for one in program.inputs if one.dtype]
    for one in program.inputs:
        others = [other.name for other in tensors if other is not one and not other.same_as]
        if others and one.dtype:
            yield without_unused_inputs(_renamed(program, one.name, others[0]))


def _renamed(program: Program, name: str, other: str) -> Program:
    statements = tuple(
        replace(one, operands=tuple(other if text == name else text for text in one.operands))
        for one in program.statements
    )
    return replace(program, statements=statements)


def _simpler_operands(program: Program) -> Iterator[Program]:
    names = [one.name for one in program.inputs if one.dtype]
    for at, one in enumerate(program.statements):
        for place, slot in enumerate(slots(one.template)):
            text = one.operands[place]
            for simpler in _simpler_texts(slot, text, names):
                operands = (*one.operands[:place], simpler, *one.operands[place + 1 :])
                changed = replace(one, operands=operands)
                statements = (*program.statements[:at], changed, *program.statements[at + 1 :])
                yield replace(program, statements=statements)


def _simpler_texts(slot: str, text: str, names: list[str]) -> Iterator[str]:
    is_name = bool(re.fullmatch(r"[a-z]\w*", text)) and text not in ("nan", "inf")
    if is_name and text not in names and slot[0] in "xfcibly":
        yield from names
    elif not is_name and slot[0] in "nyk" and text not in SIMPLE_NUMBERS:
        yield from SIMPLE_NUMBERS
    elif slot[0] in "nyk" and text in SIMPLE_NUMBERS:
        yield from SIMPLE_NUMBERS[: SIMPLE_NUMBERS.index(text)]


def _simpler_inputs(program: Program) -> Iterator[Program]:
    for at, one in enumerate(program.inputs):
        for simpler in _simpler_input(one):
            inputs = (*program.inputs[:at], simpler, *program.inputs[at + 1 :])
            yield replace(program, inputs=inputs)
    shapes = {one.shape for one in program.inputs if one.dtype and not one.same_as}
    if len(shapes) == 1:  # all at once, where one alone would no longer fit the others
        for shape in _smaller_shapes(*shapes):
            inputs = tuple(
                replace(one, shape=shape) if one.dtype and not one.same_as else one
                for one in program.inputs
            )
            yield replace(program, inputs=inputs)


def _simpler_input(one: Input) -> Iterator[Input]:
    if not one.dtype or one.same_as:
        return
    if one.grad:
        yield replace(one, grad=False)
    for call, layout in enumerate(one.layouts):
        if layout != "plain":
            yield replace(
                one, layouts=(*one.layouts[:call], "plain", *one.layouts[call + 1 :])
            )
    for shape in _smaller_shapes(one.shape):
        yield replace(one, shape=shape)
    if len(one.values) > 1:
        for at in range(len(one.values)):
            yield replace(one, values=one.values[at : at + 1])
        for at in range(len(one.values)):
            yield replace(one, values=one.values[:at] + one.values[at + 1 :])
    simple = ("True",) if one.dtype == "bool" else ("1",)
    if one.values != simple and len(one.values) == 1:
        yield replace(one, values=simple)


def _smaller_shapes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if 0 in shape:
        yield (0,)
        return
    count = 1
    for size in shape:
        count *= size
    for other in SIMPLE_SHAPES:
        sizes = 1
        for size in other:
            sizes *= size
        if (sizes, len(other)) < (count, len(shape)) or (sizes == count and other < shape):
            yield other
