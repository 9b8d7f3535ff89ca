# SPDX-License-Identifier: Apache-2.0
"""A random program as data that prints as Python. The printed script is what runs.

    Input("a", "float32", (3,), ("1.0",), ("plain", "neg"))     one argument, laid out for two calls
    Statement("v0", "torch.floor({x})", ("a",))                 v0 = torch.floor(a)
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

PRELUDE = '''import torch
import torch.nn.functional as F

nan, inf = float("nan"), float("inf")


def made(dtype, shape, values):
    """The values, over and over, as a tensor."""
    values = torch.stack([torch.tensor(value).to(dtype) for value in values])
    count = torch.Size(shape).numel()
    return values.repeat(count // len(values) + 1)[:count].reshape(shape){device}
'''

FOOTER = '''

if __name__ == "__main__":
    import thunder
    import thunder_fuser
    from thunder_fuser import fuser

    jitted = {jitted}
    for call in CALLS:
        for name, run in (("eager", program), ("fused", jitted)):
            arguments = call()
            try:
                results = run(*arguments)
{between}{backward}                print(name, "gives", results, "and leaves", arguments)
            except Exception as error:
                print(name, "raises", repr(error))
'''

BETWEEN = """                between(arguments, results)
"""
BACKWARD = """                wanted = [r for r in results if getattr(r, "requires_grad", False)]
                leaves = [a for a in arguments if getattr(a, "requires_grad", False)]
                seeds = [made(r.dtype, r.shape, [1.0, -0.5, 2.0]) for r in wanted]
                print(name, "gradients", torch.autograd.grad(wanted, leaves, seeds, allow_unused=True))
"""  # noqa: E501

DEFAULTS = "*thunder.get_default_executors()"

REAL_VIEWS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
LAYOUTS = (
    "plain", "permuted", "offset", "sliced", "strided", "expanded", "neg", "conj", "negimag", "real"
)  # fmt: skip
BITS = {"neg", "conj", "negimag"}
USUAL = ("thunder.jit", "fuser")


@dataclass(frozen=True, slots=True)
class Input:
    """One argument: a tensor; a number; or another argument once more.

    values: literals that fill it in turns, of a number the only one
    layouts: one for each call
    same_as: the argument it is a view of, with `view` as the expression
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: tuple[str, ...]
    layouts: tuple[str, ...] = ("plain",)
    grad: bool = False
    same_as: str = ""
    view: str = "{x}"

    def text(self, call: int) -> str:
        """The expression that makes it."""
        if self.same_as:
            return self.view.format(x=self.same_as)
        if not self.dtype:
            return self.values[0]
        made = laid_out(self.layouts[call], self.dtype, self.shape, self.values)
        return f"{made}.requires_grad_()" if self.grad else made


@dataclass(frozen=True, slots=True)
class Statement:
    """`target = template`; without a target, a write in place. Operands fill the template's slots
    in their order."""

    target: str
    template: str
    operands: tuple[str, ...]

    def __str__(self) -> str:
        names = slots(self.template)
        text = self.template.format(**dict(zip(names, self.operands, strict=True)))
        return f"{self.target} = {text}" if self.target else text

    @property
    def op(self) -> str:
        """What it calls, without its operands."""
        return re.sub(r"\{\w+\}", "_", self.template)


@dataclass(frozen=True)
class Program:
    """Arguments, statements and what is returned.

    between: writes into results and arguments, before a backward or another call
    device: where tensors are
    options: of jit
    jit: the function that jits it, with the executors
    """

    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    device: str = "cpu"
    options: tuple[tuple[str, Any], ...] = ()
    helpers: str = ""
    between: tuple[Statement, ...] = ()
    jit: str = "thunder.jit"
    executors: tuple[str, ...] = ("fuser",)

    @property
    def calls(self) -> int:
        return max((len(one.layouts) for one in self.inputs if one.dtype), default=1)

    @property
    def has_grad(self) -> bool:
        return any(one.grad for one in self.inputs)

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(sorted({one.op for one in self.statements}))

    @property
    def jitted(self) -> str:
        """The expression for what is compared with `program`."""
        options = "".join(f", {key}={value!r}" for key, value in self.options)
        executors = ", ".join(self.executors)
        return f"{self.jit}(program, executors=[{executors}], fuser_strict=True{options})"

    @property
    def jitted_without_us(self) -> str:
        """The same by Thunder, with the other executors."""
        others = ", ".join(one for one in self.executors if one != "fuser")
        return f"thunder.jit(program, executors=[{others}])"

    @property
    def traits(self) -> tuple[str, ...]:
        """What failures are grouped by: its ops, without writes; or views by bits, whatever is
        done to them. And how it is jitted, and what is written afterwards."""
        layouts = {layout for one in self.inputs for layout in one.layouts}
        bits = tuple(f"{one} argument" for one in sorted(layouts & BITS))
        made = tuple(sorted({one.op for one in self.statements if one.target}))
        beside = tuple(one for one in (self.jit, *self.executors) if one not in USUAL)
        return (bits or made or self.ops) + beside + ("writes afterwards",) * bool(self.between)

    @cached_property
    def text(self) -> str:
        """The part that defines `program` and `CALLS`."""
        names = ", ".join(one.name for one in self.inputs)
        device = "" if self.device == "cpu" else f'.to("{self.device}")'
        lines = [PRELUDE.replace("{device}", device) + self.helpers, f"\ndef program({names}):"]
        lines += [f"    {one}" for one in self.statements]
        lines.append(f"    return {', '.join(self.results)}," if self.results else "    return ()")
        if self.between:
            lines += ["", "", "def between(arguments, results):", f"    {names}, = arguments"]
            lines += [f"    {', '.join(self.results)}, = results"] * bool(self.results)
            lines += [f"    {one}" for one in self.between]
        for call in range(self.calls):
            lines += ["", "", f"def call_{call}():"]
            lines += [f"    {one.name} = {one.text(call)}" for one in self.inputs]
            lines.append(f"    return {names}," if names else "    return ()")
        listed = ", ".join(f"call_{call}" for call in range(self.calls))
        return "\n".join([*lines, "", "", f"CALLS = [{listed}]"]) + "\n"

    def __str__(self) -> str:
        backward = BACKWARD if self.has_grad else ""
        between = BETWEEN if self.between else ""
        return self.text + FOOTER.format(jitted=self.jitted, between=between, backward=backward)


def words(text: str) -> list[str]:
    """A list, written without quotes."""
    return text.split()


def slots(template: str) -> list[str]:
    """The names of a template's places, in order, each once."""
    return list(dict.fromkeys(re.findall(r"\{(\w+)\}", template)))


def laid_out(layout: str, dtype: str, shape: tuple[int, ...], values: tuple[str, ...]) -> str:
    """An expression for a tensor of this shape, that lies in memory as the layout says."""
    listed = ", ".join(values)

    def made(*sizes: int) -> str:
        return f"made(torch.{dtype}, {sizes}, [{listed}])"

    if layout == "permuted":
        return f"{made(*shape[::-1])}.permute({tuple(range(len(shape)))[::-1]})"
    if layout == "offset":
        return f"{made(math.prod(shape) + 1)}[1:].view({shape})"
    if layout == "sliced" and shape:
        return f"{made(*shape[:-1], shape[-1] + 1)}[..., 1:]"
    if layout == "strided" and shape:
        return f"{made(*shape[:-1], shape[-1] * 2)}[..., ::2]"
    if layout == "expanded" and shape:
        return f"{made(1, *shape[1:])}.expand({shape})"
    if layout == "neg" and dtype != "bool" and not dtype.startswith("float8"):
        return f"torch._neg_view({made(*shape)})"
    if layout == "conj" and dtype in COMPLEX:
        return f"{made(*shape)}.conj()"
    if layout in ("negimag", "real") and dtype in REAL_VIEWS:
        both = f"torch.complex({made(*shape)}, {made(*shape)})"
        return f"{both}.conj().imag" if layout == "negimag" else f"{both}.real"
    return made(*shape)
