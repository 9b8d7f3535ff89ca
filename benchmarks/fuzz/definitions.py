# SPDX-License-Identifier: Apache-2.0
"""Random FusionDefinitions, beside what they mean, written in torch calls.

A definition may come twice, once with an attribute that compares equal and is another (1, 1.0,
True), or with nonsense: each must behave in a cache where the other came before as in a new one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from benchmarks.fuzz import generate, table
from benchmarks.fuzz.judge import (
    TRAPS,
    Failure,
    Truth,
    Verdict,
    origin,
    place_of,
    quiet,
    scope_of,
    traps,
)
from benchmarks.fuzz.program import Input, Program, Statement, slots
from benchmarks.fuzz.rows import MEANINGS
from benchmarks.fuzz.shrink import simpler_programs
from thunder_fuser import FusionCache, FusionDefinition
from thunder_fuser.errors import FuserError
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.runtime.torch_types import from_torch_dtype

LAYOUTS = ("plain", "permuted", "offset", "sliced", "strided", "expanded")
TWISTS = ("{0}.0", "True", "False", "-0.0", "1.5", "nan", "None", "'x'", "10**30",
          "-7", "[{0}]", "{0} + 0j")  # fmt: skip

# Calls with attributes, and those that are made of several, have more in them to be wrong.
WEIGHTS = [1 + 2 * ("{D}" in row or "dtype=" in row) + 2 * ("var" in row) for row in MEANINGS]

HELPERS = '''

def up(x):
    """16-bit floats are computed in float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
'''

DEFINE = '''
from thunder_fuser import FusionDefinition
from thunder_fuser.ir.dtypes import DataType


def run(define, arguments):
    with FusionDefinition() as fd:
        for result in define(fd, *[fd.from_pytorch(one) for one in arguments]):
            fd.add_output(result)
    return fd.execute(arguments, target={target!r})
'''

FOOTER = """

if __name__ == "__main__":
    print("torch gives", program(*call_0()))
    for define in DEFINITIONS:
        try:
            print("fused gives", run(define, call_0()))
        except Exception as error:
            print("fused raises", repr(error))
"""


@dataclass(frozen=True)
class Twist:
    """Another text for one operand of one statement, and whether that definition comes first."""

    at: int
    place: int
    text: str
    is_first: bool


@dataclass(frozen=True)
class DefinitionProgram:
    """The definition and its arguments, as a Program whose statements call fd.ops."""

    program: Program
    target: str | None
    twist: Twist | None = None

    @property
    def ops(self) -> tuple[str, ...]:
        return self.program.ops

    @property
    def traits(self) -> tuple[str, ...]:
        """What failures are grouped by."""
        return self.ops

    @property
    def change(self) -> str:
        """How its second definition differs, without the numbers: `[#]` as `[#.0]`."""
        if self.twist is None:
            return ""
        one = self.program.statements[self.twist.at]
        texts = (one.operands[self.twist.place], self.twist.text)
        return " as ".join(re.sub(r"-?\d+", "#", text) for text in texts)

    @cached_property
    def meaning(self) -> Program:
        """The same program in torch's calls."""
        statements = tuple(map(_in_torch, self.program.statements))
        return replace(self.program, statements=statements, helpers=HELPERS)

    @cached_property
    def definitions(self) -> tuple[tuple[Statement, ...], ...]:
        """What is defined, in order."""
        plain, twist = self.program.statements, self.twist
        if twist is None:
            return (plain,)
        one = plain[twist.at]
        operands = (*one.operands[: twist.place], twist.text, *one.operands[twist.place + 1 :])
        twisted = (*plain[: twist.at], replace(one, operands=operands), *plain[twist.at + 1 :])
        return (twisted, plain) if twist.is_first else (plain, twisted)

    @cached_property
    def text(self) -> str:
        names = ", ".join(one.name for one in self.program.inputs)
        lines = [self.meaning.text, DEFINE.format(target=self.target)]
        for number, statements in enumerate(self.definitions):
            lines += ["", f"def define_{number}(fd, {names}):"]
            lines += [f"    {one}" for one in statements]
            lines += [f"    return {', '.join(self.program.results)},", ""]
        listed = ", ".join(f"define_{at}" for at in range(len(self.definitions)))
        return "\n".join([*lines, f"\nDEFINITIONS = [{listed}]"]) + "\n"

    def __str__(self) -> str:
        return self.text + FOOTER


def _in_torch(one: Statement) -> Statement:
    """A call of the language as what it means."""
    given = dict(zip(slots(one.template), map(_torch_dtype, one.operands), strict=True))
    meaning = MEANINGS[one.template]
    return Statement(one.target, meaning, tuple(given[slot] for slot in slots(meaning)))


def _torch_dtype(text: str) -> str:
    return _TORCH_NAMES.get(text, text)


_TORCH_NAMES = {
    str(from_torch_dtype(getattr(torch, name))): f"torch.{name}"
    for name in (*table.DTYPES, *table.EIGHTS)
}


# ---- drawing one


def program_of(seed: int, target: str = "cpu") -> DefinitionProgram:
    """The definition of a seed."""
    rng = random.Random(seed)
    drawing = _Drawing(rng, target)
    with quiet():
        program = drawing.program()
    named = {"cpu": "cpu", "emulator": "emulator"}.get(target)
    steady = "{l}" if target == "cuda" else "{}"  # out of range, an index would trap there
    return DefinitionProgram(program, named, _twist(rng, program.statements, steady))


class _Drawing(generate.Drawing):
    """Statements in the definition language, run in torch while they are drawn."""

    def program(self) -> Program:
        rng = self.rng
        shape = self.shape() or (3,)
        dtypes = rng.choices((*table.DTYPES, *table.COMPLEX, "float32"), k=rng.choice((1, 1, 2)))
        self.options = ()
        self.inputs = [
            Input(name, dtype := rng.choice(dtypes), shape, generate.values_of(rng, dtype, shape),
                  (rng.choice(LAYOUTS),))
            for name in "ab"[: rng.choice((1, 2))]
        ]  # fmt: skip
        self.begin(HELPERS)
        for _ in range(rng.randint(1, 6)):
            self._row(rng.choices(list(MEANINGS), WEIGHTS)[0])
        if not self.statements:
            self.statements.append(Statement("v0", "fd.ops.set({x})", ("a",)))
        return self.so_far()

    def _row(self, template: str) -> None:
        for _ in range(5):
            operands = self.operands(template, self.rng.random() < 0.6)
            if operands is None:
                return
            target = f"v{len(self.statements)}"
            try:
                value = self.value_of(_in_torch(Statement("", template, operands)))
            except Exception:
                continue
            if isinstance(value, torch.Tensor) and 0 < value.ndim < 5 and value.numel() < self.most:
                self.statements.append(Statement(target, template, operands))
                self.scope[target] = value
                return

    def operand(self, kind: str, from_inputs: bool, found: Any) -> str | None:
        if kind in "te":
            names = table.DTYPES if kind == "t" else table.EIGHTS
            return str(from_torch_dtype(getattr(torch, self.rng.choice(names))))
        if kind == "n":  # a definition has no complex literals
            return self.rng.choice([one for one in table.NUMBERS if "j" not in one])
        text = super().operand(kind, from_inputs, found)
        if kind == "D" and text == "()":  # torch takes no axes to mean all of them
            text = "(0,)"
        return f"[{text.strip('()').rstrip(',')}]" if text and kind == "D" else text


def _twist(
    rng: random.Random, statements: tuple[Statement, ...], steady: str
) -> Twist | None:
    """A number of an attribute, changed; not of templates with what is steady."""
    places = [
        (at, place)
        for at, one in enumerate(statements)
        for place, slot in enumerate(slots(one.template))
        if slot[0] in "dDkB" and steady not in one.template
    ]
    if not places or rng.random() < 0.2:
        return None
    at, place = rng.choice(places)
    text = statements[at].operands[place]
    if text in ("True", "False"):
        other = rng.choice((str(int(text == "True")), f"{int(text == 'True')}.0", "None", "2"))
    else:
        form = rng.choice(TWISTS[:3] * 4 + TWISTS)
        other = re.sub(r"-?\d+", lambda number: form.format(number[0]), text)
    return Twist(at, place, other, rng.random() < 0.5)


# ---- judging one


def judge(program: DefinitionProgram) -> Verdict:
    """Values beside torch's, errors that are not ours, texts, and what caches do."""
    with quiet():
        if traps(program.meaning):
            return Verdict((), TRAPS)
        scope = scope_of(program.text)
        alone = [_in_new_cache(program, scope, at) for at in range(len(program.definitions))]
        failures = [one for outcome in alone for one in outcome.failures]
        truth = Truth(program.meaning)
        failures += _values(program, truth, alone)
        if len(alone) > 1:
            failures += _beside_each_other(program, scope, alone)
    return Verdict(tuple(failures), "" if failures else truth.open)


@dataclass(frozen=True)
class _Outcome:
    """error: the name of its type, or of what came of it, and the text of the fusion."""

    error: str
    text: str
    results: tuple[torch.Tensor, ...] = ()
    failures: tuple[Failure, ...] = ()


def _in_new_cache(program: DefinitionProgram, scope: dict[str, Any], at: int) -> _Outcome:
    with FusionCache():
        return _outcome(program, scope, at)


def _outcome(program: DefinitionProgram, scope: dict[str, Any], at: int) -> _Outcome:
    """One of the definitions, made and run in the cache that is current."""
    define: Callable[..., Any] = scope["DEFINITIONS"][at]
    arguments = scope["call_0"]()
    fd = FusionDefinition()
    try:
        with fd:
            for result in define(fd, *[fd.from_pytorch(one) for one in arguments]):
                fd.add_output(result)
        text = str(fd.fusion)
        again = _rebuilt(fd, text)
        results = tuple(fd.execute(list(arguments), target=program.target))
    except Exception as raised:
        error = origin(raised)
        name = type(error).__name__
        if isinstance(error, FuserError):
            return _Outcome(name, "")
        told = f"{name}: {str(error)[:300]} [in {place_of(error)}]"
        return _Outcome(name, "", (), (Failure(f"internal {name}", "call", 0, told),))
    return _Outcome("", text, results, again)


def _rebuilt(fd: FusionDefinition, text: str) -> tuple[Failure, ...]:
    """The text of a fusion is the fusion."""
    try:
        again = rebuild(text)
    except Exception as error:
        return (Failure("text", "call", 0, f"{type(error).__name__}: {str(error)[:300]}"),)
    if again == fd.fusion and str(again) == text:
        return ()
    return (Failure("text", "call", 0, f"rebuilds as another: {again}"),)


def _values(
    program: DefinitionProgram, truth: Truth, alone: list[_Outcome]
) -> Iterator[Failure]:
    """The plain definition beside torch. What only one of both takes is not compared."""
    plain = program.definitions.index(program.program.statements)
    if alone[plain].error:
        return
    if truth.eager[0].error is not None:
        return
    for one in truth.failures(lambda *arguments: alone[plain].results):
        is_half = one.detail.endswith("eager torch.complex32")  # which a definition does not have
        if "memory" not in one.kind and not is_half:  # each of its results has memory of its own
            yield one


def _beside_each_other(
    program: DefinitionProgram, scope: dict[str, Any], alone: list[_Outcome]
) -> Iterator[Failure]:
    """Both definitions in one cache, beside each in a cache of its own."""
    with FusionCache():
        for at, first in enumerate(alone):
            second = _outcome(program, scope, at)
            if (second.error, second.text) != (first.error, first.text):
                told = f"define_{at}: {_told(second)}; in a new cache {_told(first)}"
                yield Failure("cache", "call", 0, told)


def _told(outcome: _Outcome) -> str:
    return outcome.error or " ".join(outcome.text.split())


# ---- shrinking one


def simpler(program: DefinitionProgram) -> Iterator[DefinitionProgram]:
    """Without the twist, or with a simpler program below it."""
    if program.twist is not None:
        yield replace(program, twist=None)
    for one in simpler_programs(program.program):
        if not one.results or not one.statements:
            continue
        if program.twist is None:
            yield replace(program, program=one)
        elif (twist := _moved(program, one)) is not None:
            yield replace(program, program=one, twist=twist)


def _moved(program: DefinitionProgram, other: Program) -> Twist | None:
    """The twist at the same statement of another program; None if that is gone."""
    twist = program.twist
    assert twist is not None
    target = program.program.statements[twist.at].target
    places = [at for at, one in enumerate(other.statements) if one.target == target]
    return replace(twist, at=places[0]) if places else None

