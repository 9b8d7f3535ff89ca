# SPDX-License-Identifier: Apache-2.0
"""A seed -> a Program. Statements are run by torch as they are drawn, so that most of them work.

What torch refuses is left out, but for a few programs that end with it: the fuser must refuse too.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from benchmarks.fuzz import table
from benchmarks.fuzz.program import LAYOUTS, Input, Program, Statement, slots

T = TypeVar("T")

SHAPES = (
    (), (1,), (2,), (3,), (5,), (8,), (2, 3), (3, 1), (1, 6), (4, 5), (2, 3, 4), (0,), (2, 0),
    (1, 1), (3, 1, 2),
)  # fmt: skip
ROOMY = ((33,), (17, 9), (7, 7), (4, 5), (2, 3, 4), (40, 3))  # many values for one kernel
LARGE = ((64, 65), (4100,), (3, 1031), (260, 9))
MOST_ELEMENTS = 20_000
REFUSED_KEPT = 0.03
EMULATED_ELEMENTS = 2_000
# Under a dispatch mode torch's gradient of cumprod runs ten ops an element: a minute a program.
CUMPROD_ELEMENTS = 300


def program_of(seed: int, target: str = "cpu") -> Program:
    """The program of a seed: the same text each time."""
    rng = random.Random(seed)
    drawing = Drawing(rng, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return drawing.program()


class Drawing:
    """The program as far as it is drawn, and the values that its names have in torch."""

    def __init__(self, rng: random.Random, target: str) -> None:
        self.rng = rng
        self.device = "cuda" if target == "cuda" else "cpu"
        self.options = (("fuser_emulate", True),) if target == "emulator" else ()
        self.most = EMULATED_ELEMENTS if target == "emulator" else MOST_ELEMENTS
        self.statements: list[Statement] = []
        self.scope: dict[str, Any] = {}

    def program(self) -> Program:
        rng = self.rng
        style = rng.choices(("mixed", "wide", "copies", "edges", "attention"), (5, 4, 2, 2, 1))[0]
        self.inputs = self._of_attention() if style == "attention" else self._inputs()
        if style == "edges":
            self.inputs = [self._at_edges(one) for one in self.inputs]
        self.begin()
        if style == "copies":
            self._copies()
        elif style == "attention":
            self._attend()
        else:
            self._statements(style)
        jit, executors = _weighted(rng, table.JITS)
        program = replace(self.so_far(), jit=jit, executors=executors)
        if program.has_grad and rng.random() < 0.15:
            policy = "fuser_rematerialization", rng.choice(table.RECOMPUTED)
            program = replace(program, options=(*program.options, policy))
        if rng.random() < (0.4 if program.has_grad else 0.1):
            program = replace(program, between=self._between(program))
        return program

    def _statements(self, style: str) -> None:
        rng = self.rng
        group = _weighted(rng, table.GROUPS) if style == "wide" else None
        group = table.EDGY if style == "edges" else group
        for _ in range(rng.randint(1, 8)):
            chosen = group or _weighted(rng, table.GROUPS)
            if rng.random() < 0.08:
                chosen = table.WRITING
            if not self._statement(rng.choice(chosen), from_inputs=group is not None):
                break

    def begin(self, helpers: str = "") -> None:
        """Makes the arguments, on the CPU whatever the target: a seed is one program anywhere."""
        scope: dict[str, Any] = {}
        program = Program(tuple(self.inputs), (), (), helpers=helpers)
        exec(program.text, scope)
        arguments = scope["call_0"]()
        self.helpers = scope
        self.scope = dict(zip((one.name for one in self.inputs), arguments, strict=True))

    def so_far(self) -> Program:
        made = [one.target for one in self.statements if one.target]
        if self.rng.random() < 0.05:
            made += [one.name for one in self.inputs[:1] if one.dtype]
        return Program(
            tuple(self.inputs), tuple(self.statements), tuple(made), self.device, self.options
        )

    # ---- arguments

    def _inputs(self) -> list[Input]:
        rng = self.rng
        shape = self.shape()
        dtypes = rng.choices(table.DTYPES, k=rng.choice((1, 1, 2)))
        calls = rng.choice((1, 2, 2))
        has_grad = rng.random() < 0.3
        found = [
            self._tensor(name, rng.choice(dtypes), _beside(rng, shape), calls, has_grad)
            for name in "abc"[: rng.choice((1, 1, 2, 2, 3))]
        ]
        if rng.random() < 0.1:
            view = rng.choice(("{x}", "{x}.movedim(0, -1)", "{x}[..., 1:]"))
            found.append(Input("alias", found[0].dtype, (), (), same_as="a", view=view))
            if view != "{x}" and not found[0].shape:
                found.pop()
        if rng.random() < 0.15:
            found.append(Input("n", "", (), (rng.choice(table.NUMBERS),)))
        return found

    def _of_attention(self) -> list[Input]:
        """Queries, keys and values, and a mask of any shape that broadcasts to the scores."""
        rng = self.rng
        batch, heads, width = rng.choice((1, 2, 3)), rng.choice((1, 2, 4)), rng.choice((1, 4, 8))
        rows, keys = rng.choice((1, 2, 5)), rng.choice((1, 3, 8))
        dtype, has_grad = rng.choice(table.FLOATS), rng.random() < 0.4
        calls = rng.choice((1, 2))
        found = [
            self._tensor(name, dtype, (batch, heads, size, width), calls, has_grad)
            for name, size in zip("abc", (rows, keys, keys), strict=True)
        ]
        scores = (batch, heads, rows, keys)
        sizes = tuple(1 if rng.random() < 0.5 else size for size in scores)[rng.randint(0, 3) :]
        kind = dtype if rng.random() < 0.5 else "bool"
        mask = self._tensor("m", kind, sizes, calls, has_grad)
        return [*(replace(one, values=table.TAME) for one in found), mask]

    def shape(self) -> tuple[int, ...]:
        draw = self.rng.random()
        if draw < 0.06 and self.most > EMULATED_ELEMENTS:
            return self.rng.choice(LARGE)
        return self.rng.choice(ROOMY if draw < 0.5 else SHAPES)

    def _tensor(
        self, name: str, dtype: str, shape: tuple[int, ...], calls: int, has_grad: bool
    ) -> Input:
        rng = self.rng
        if rng.random() < 0.03:
            dtype = rng.choice(table.EIGHTS)
        layouts = tuple(
            rng.choice(LAYOUTS) if rng.random() < 0.6 else "plain" for _ in range(calls)
        )
        grad = has_grad and dtype in (*table.FLOATS, *table.COMPLEX)
        return Input(name, dtype, shape, values_of(rng, dtype, shape), layouts, grad)

    def _at_edges(self, one: Input) -> Input:
        """The same argument of floats that are infinite, NaN, zero or plain."""
        if not one.dtype or one.same_as:
            return one
        dtype = one.dtype if one.dtype in table.FLOATS else "float32"
        count = self.rng.randint(2, len(table.EDGES))
        return replace(one, dtype=dtype, values=tuple(self.rng.sample(table.EDGES, count)))

    # ---- statements

    def _attend(self) -> None:
        """Attention with a mask, between statements of any kind."""
        rng = self.rng
        if rng.random() < 0.3:
            self._statement(rng.choice(table.MASKS), from_inputs=True)
        names = [("a", "b", "c", name) for name in self.scope if name not in "abc"]
        attention = [
            Statement(f"v{len(self.statements)}", template, one)
            for one in names
            for template in table.ATTENTION
        ]
        attention = [one for one in attention if self._works(replace(one, target=""))]
        if attention:
            self.statements.append(one := rng.choice(attention))
            self.scope[one.target] = self.value_of(replace(one, target=""))
        for _ in range(rng.randint(0, 3)):
            group = _weighted(rng, table.GROUPS)
            self._statement(rng.choice(group))

    def _copies(self) -> None:
        """Copies of arguments, each written to."""
        for _ in range(self.rng.randint(1, 4)):
            if self._statement(self.rng.choice(table.COPIES), from_inputs=True):
                self._statement(self.rng.choice(table.WRITING), last=True)

    def _statement(self, template: str, from_inputs: bool = False, last: bool = False) -> bool:
        """Draws operands until torch takes them; False if a program ends here, refused by torch."""
        for _ in range(4):
            operands = self.operands(template, from_inputs, last)
            if operands is None:
                return True
            writes = template in table.WRITING
            target = "" if writes else f"v{len(self.statements)}"
            statement = Statement(target, template, operands)
            try:
                value = self.value_of(replace(statement, target=""))
            except Exception:
                if self.rng.random() < REFUSED_KEPT:
                    self.statements.append(statement)
                    return False
                continue
            most = CUMPROD_ELEMENTS if "cumprod" in template else self.most
            if isinstance(value, torch.Tensor) and value.numel() <= most:
                self.statements.append(statement)
                if target:
                    self.scope[target] = value
                return True
        return True

    def _between(self, program: Program) -> tuple[Statement, ...]:
        """Writes into what is returned, into views of it, and now and then into an argument."""
        made = list[Statement]()
        for _ in range(self.rng.choice((1, 1, 2))):
            at_arguments = self.rng.random() < 0.15
            names = [one.name for one in program.inputs if one.dtype] if at_arguments else [
                name for name in program.results if isinstance(self.scope.get(name), torch.Tensor)
            ]  # fmt: skip
            writes = table.DETACHED if at_arguments else table.BETWEEN
            if names:
                operands = (self.rng.choice(names),)
                made.append(Statement("", self.rng.choice(writes), operands))
        return tuple(one for one in made if self._works(one))

    def _works(self, statement: Statement) -> bool:
        try:
            self.value_of(statement)
        except Exception:
            return False
        return True

    def value_of(self, statement: Statement) -> Any:
        """What torch makes of it."""
        return eval(str(statement), self.helpers, self.scope)

    def operands(
        self, template: str, from_inputs: bool, last: bool = False
    ) -> tuple[str, ...] | None:
        found: list[str] = []
        for at, slot in enumerate(slots(template)):
            text = self._last() if last and at == 0 else self.operand(slot[0], from_inputs, found)
            if text is None:
                return None
            found.append(text)
        return tuple(found)

    def _last(self) -> str | None:
        made = [one.target for one in self.statements if one.target]
        return made[-1] if made else None

    def operand(self, kind: str, from_inputs: bool, found: Sequence[str]) -> str | None:
        rng = self.rng
        if kind == "y":
            kind = "n" if rng.random() < 0.4 else "x"
        if kind in "xfcibl":
            return self._tensor_name(kind, from_inputs)
        first = self.scope.get(found[0]) if found else None
        rank = first.ndim if isinstance(first, torch.Tensor) else 1
        axes = range(-rank, rank) if rank else (0, -1)
        match kind:
            case "n":
                named = [one.name for one in self.inputs if not one.dtype]
                if named and rng.random() < 0.5:
                    return rng.choice(named)
                return rng.choice(table.COMMON if rng.random() < 0.4 else table.NUMBERS)
            case "k":
                return rng.choice(table.WHOLE)
            case "d":
                return str(rng.choice(axes)) if rng.random() < 0.95 else str(rank)
            case "D":
                count = rng.randint(0 if rng.random() < 0.2 else 1, max(rank, 1))
                return str(tuple(sorted(rng.sample(range(rank), min(count, rank)))))
            case "t":
                return rng.choice(table.DTYPES)
            case "e":
                return rng.choice(table.EIGHTS)
            case "s":
                return str((1,) * rank if rng.random() < 0.4 else (2,) + (1,) * rank)
            case _:
                return rng.choice(("True", "False"))

    def _tensor_name(self, kind: str, from_inputs: bool) -> str | None:
        """A value of that kind; with `from_inputs`, an argument."""
        names = {one.name for one in self.inputs} if from_inputs else set(self.scope)
        fits = [
            name
            for name in sorted(names)
            if isinstance(value := self.scope[name], torch.Tensor) and _is_kind(kind, value.dtype)
        ]
        if not fits and kind == "l" and not from_inputs:
            return None
        if not fits:
            return None if from_inputs is False else self._tensor_name(kind, False)
        return self.rng.choice(fits)


def values_of(rng: random.Random, dtype: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Some numbers for a tensor of this dtype: special ones, or tame ones that stay finite."""
    if dtype == "bool":
        return rng.choice((("True", "False"), ("True",), ("False", "True", "True")))
    if dtype in table.INTEGER_VALUES:
        pool = ("0", "1", "2", "3", "1") if rng.random() < 0.3 else table.INTEGER_VALUES[dtype]
    elif dtype in table.COMPLEX:
        pool = table.COMPLEX_VALUES if rng.random() < 0.7 else table.COMPLEX_VALUES[:6]
    else:
        pool = rng.choice((table.TAME, table.EDGES, table.FLOAT_VALUES))
    most = min(20 if math.prod(shape) > 16 else 7, len(pool))
    return tuple(rng.sample(pool, rng.randint(1, most)))


def _beside(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape, or one that broadcasts with it."""
    draw = rng.random()
    if draw < 0.7 or not shape:
        return shape
    if draw < 0.8:
        return shape[1:]
    if draw < 0.85:
        return ()
    return tuple(1 if rng.random() < 0.5 else size for size in shape)


def _weighted(rng: random.Random, groups: dict[T, int]) -> T:
    return rng.choices(list(groups), list(groups.values()))[0]


def _is_kind(kind: str, dtype: torch.dtype) -> bool:
    match kind:
        case "f":
            return dtype.is_floating_point
        case "c":
            return dtype.is_complex
        case "i":
            return not dtype.is_floating_point and not dtype.is_complex
        case "b":
            return dtype is torch.bool
        case "l":
            return dtype in (torch.int64, torch.int32)
        case _:
            return True
