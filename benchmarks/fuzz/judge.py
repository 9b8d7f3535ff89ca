# SPDX-License-Identifier: Apache-2.0
"""A Program -> what the fuser does wrong in it beside eager torch, and plain Thunder does not."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import thunder
import torch

import thunder_fuser
from benchmarks.fuzz import leeway, tolerance
from benchmarks.fuzz.program import Program
from thunder_fuser import fuser
from thunder_fuser.errors import BuildError, FuserError

PACKAGE = str(Path(thunder_fuser.__file__).parent)
# What a bug in a program of ours looks like; what Thunder or torch raise is their way to refuse.
INTERNAL = (
    KeyError, IndexError, AssertionError, AttributeError, TypeError, ZeroDivisionError,
    RecursionError, UnboundLocalError, StopIteration, NotImplementedError, OverflowError,
)  # fmt: skip
INDEXING = ("index_select", "take_along_dim", "gather")
OF_INDEXING = "out of bounds for dimension"  # torch's words, without a Python frame of torch's
WRITTEN = "modified by an inplace operation"  # torch's words where a saved value was
TRAPS = "an index out of range, which traps on CUDA"


@dataclass(frozen=True, slots=True)
class Failure:
    """kind: what differs; where: the value it is about, and of which call; detail: how."""

    kind: str
    where: str
    call: int
    detail: str


@dataclass
class Seen:
    """What a call left: values by what they are, and which of them share memory.

    wrote_argument: what ran between forward and backward did
    is_refused: torch refuses the backward, since a value that it saved was written; the gradients
        are those of the values that were saved
    """

    values: dict[str, Any] = field(default_factory=dict)
    sharing: frozenset[tuple[str, str]] = frozenset()
    error: BaseException | None = None
    wrote_argument: bool = False
    is_refused: bool = False


@dataclass(frozen=True)
class Verdict:
    """The failures of the fuser; `aside` says why they are not reported, if they are not."""

    failures: tuple[Failure, ...] = ()
    aside: str = ""


def judge(program: Program) -> Verdict:
    """Runs a program in torch, through the fuser, and if they differ, through plain Thunder."""
    with quiet():
        if traps(program):
            return Verdict((), TRAPS)
        truth = Truth(program)
        failures = tuple(truth.failures(truth.jitted(program.jitted)))
        if not failures:
            return Verdict((), truth.open)
        if any(one.kind.startswith("internal") for one in failures):
            return Verdict(failures)
        theirs = {(one.call, one.where): one.kind for one in of_thunder(truth)}
    own = tuple(one for one in failures if not _is_theirs(one, theirs))
    if own:
        return Verdict(own)
    return Verdict((), f"Thunder too: {next(iter(theirs.values()))}")


def of_thunder(truth: Truth) -> list[Failure]:
    """The failures of Thunder with no executor but torch's, and those beside ours."""
    with keeping() if any(call.is_refused for call in truth.eager) else nullcontext():
        return [*truth.failures(truth.jitted(truth.program.jitted_without_us))]


def traps(program: Program) -> bool:
    """Whether an index is out of range on CUDA, where that ends all work of the process."""
    if program.device == "cpu" or not any(name in program.text for name in INDEXING):
        return False
    on_cpu = Truth(replace(program, device="cpu"))
    return any(one.error is not None for one in on_cpu.eager)


def _is_theirs(failure: Failure, theirs: dict[tuple[int, str], str]) -> bool:
    """Plain Thunder fails at the same place, or its call did not come so far."""
    return any(
        where in (failure.where, "call") and call <= failure.call
        for call, where in theirs
    ) or (failure.where == "call" and bool(theirs))


class Truth:
    """A program's own function, and what torch makes of it, call by call."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.scope = scope_of(program.text)
        self.function: Callable[..., Any] = self.scope["program"]
        self.open = ""
        self.eager = [self._see(self.scope, call) for call in range(program.calls)]

    def jitted(self, text: str) -> Callable[..., Any]:
        """Its function, jitted as the expression says."""
        scope = {"thunder": thunder, "thunder_fuser": thunder_fuser, "fuser": fuser}
        jitted: Callable[..., Any] = eval(text, scope, {"program": self.function})
        return jitted

    def failures(self, run: Callable[..., Any]) -> Iterator[Failure]:
        """What differs in calling `run`, one jitted function for all calls."""
        cold: set[str] = set()
        for call, expected in enumerate(self.eager):
            ours = observe(run, self.scope, call, self._names())
            for one in self._compare(call, ours, expected):
                if one.where not in cold:
                    yield one
                cold.add(one.where)

    def bounds(self, call: int) -> Bounds:
        return Bounds(self.program, call, self._names(), self.eager[call])

    @property
    def _saves_result(self) -> bool:
        return any(words in self.program.text for words in tolerance.SAVES_RESULT)

    @property
    def _lies_otherwise(self) -> bool:
        return any(words in self.program.text for words in tolerance.ORDERED_OTHERWISE)

    def _names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return tuple(one.name for one in self.program.inputs), self.program.results

    def _see(self, scope: dict[str, Any], call: int) -> Seen:
        seen = observe(scope["program"], scope, call, self._names())
        if seen.error is None or WRITTEN not in str(seen.error):
            return seen
        with keeping():
            kept = observe(scope["program"], scope, call, self._names())
        return replace(kept, is_refused=True)

    def _compare(self, call: int, ours: Seen, eager: Seen) -> Iterator[Failure]:
        warm = "warm " * bool(call)
        of_torch = ours.error and eager.error and _told(ours.error) == _told(eager.error)
        if ours.error is not None and is_internal(ours.error) and not of_torch:
            refused = " of what torch refuses" * (eager.error is not None)
            kind = f"internal {type(ours.error).__name__}{refused}"
            yield Failure(kind, "call", call, f"{_told(ours.error)} [in {place_of(ours.error)}]")
        elif eager.error is None and ours.error is not None:
            told = f"{_told(ours.error)} [{place_of(ours.error, everywhere=True)}]"
            saved = eager.wrote_argument or self._saves_result
            may_refuse = eager.is_refused or (saved and WRITTEN in told)
            # A backward keeps a result where eager torch keeps another value, or none.
            may_refuse |= bool(self.program.between) and "of _ConnectionBackward" in told
            is_of_view = tolerance.LIES_OTHERWISE in told
            may_refuse |= is_of_view and (self._lies_otherwise or told.endswith(":between]"))
            if may_refuse or any(words in told for words in tolerance.REFUSED_BY_US_ALONE):
                return
            yield Failure(f"{warm}raises {type(ours.error).__name__}", "call", call,
                          _told(ours.error))  # fmt: skip
        elif eager.error is not None and ours.error is None:
            if any(words in str(eager.error) for words in tolerance.REFUSED_BY_TORCH_ALONE):
                return
            yield Failure(f"{warm}accepted", "call", call, f"eager: {_told(eager.error)}")
        elif eager.error is None:
            yield from self._compare_values(call, warm, ours, eager)

    def _compare_values(
        self, call: int, warm: str, ours: Seen, eager: Seen
    ) -> Iterator[Failure]:
        bounds: Bounds | None = None
        for where, expected in eager.values.items():
            found = ours.values.get(where)
            if found is None and _is_zero_gradient(where, expected):
                continue  # Thunder's results require none where all gradients are zero
            kind, detail = _kind_of(found, expected)
            if kind == "dtype":
                bounds = bounds or self.bounds(call)
                if bounds.open in leeway.OF_TYPES:
                    self.open = bounds.open
                    continue
            if not kind and isinstance(expected, torch.Tensor) and not _identical(found, expected):
                bounds = bounds or self.bounds(call)
                kind, detail = bounds.differ(where, found, expected)
                self.open = self.open or bounds.open
            if kind:
                yield Failure(f"{warm}{where.split()[0]} {kind}", where, call, detail)
        of_diagonal = "diagonal(" in self.program.text and self.program.has_grad
        for pair in () if of_diagonal else sorted(ours.sharing ^ eager.sharing):  # Thunder gathers
            how = "shares" if pair in ours.sharing else "does not share"
            detail = f"{pair[0]} {how} it with {pair[1]}"
            yield Failure(f"{warm}{how} memory", pair[0], call, detail)


class Bounds:
    """The runs in torch that a result is held against; see tolerance.py."""

    def __init__(self, program: Program, call: int, names: Any, eager: Seen | None = None) -> None:
        with keeping() if eager and eager.is_refused else nullcontext():
            self._run(program, call, names)

    def _run(self, program: Program, call: int, names: Any) -> None:
        text = program.text
        self.samples: list[Seen] = []
        self.words = text_of_body(text)
        self.is_exact, self.open = True, leeway.reason_in(self.words, program)
        for seed in range(2):  # a run that is moved meets no exact zero, and no pole
            with tolerance.Shaken(seed, 0.0) as still:
                scope = scope_of(text)
                self.samples.append(observe(scope["program"], scope, call, names))
            self.open = self.open or still.open
        widened = [(text, None)]
        if "float16" in text:
            eps = torch.finfo(torch.bfloat16 if "bfloat16" in text else torch.float16).eps
            self.is_exact = False
            widened.append((in_place_of(text, tolerance.WIDER), eps * 2))
        for source, eps in widened:
            scope = scope_of(source)
            if eps is not None:
                self.samples.append(observe(scope["program"], scope, call, names))
            for seed in range(tolerance.SHAKES):
                with tolerance.Shaken(seed, eps) as shaken:
                    self.samples.append(observe(scope["program"], scope, call, names))
                self.is_exact &= not shaken.count
                self.open = self.open or shaken.open
        self.double = _in_double(text, call, names)

    def differ(self, where: str, ours: torch.Tensor, eager: torch.Tensor) -> tuple[str, str]:
        """("", "") if a result is right, or may be anything; else what is wrong with it."""
        if self.open:
            return "", ""
        samples = [s.values[where] for s in self.samples if _has(s, where)]
        double = self.double.values[where] if _has(self.double, where) else None
        bad = tolerance.wrong(
            ours, eager, samples, double, words_in=self.words, is_exact=self.is_exact
        )
        if where.startswith("gradient"):
            bad &= ~self._may_differ(tolerance.parts_of(ours), tolerance.parts_of(eager))
        if not bad.any():
            return "", ""
        if eager.is_complex() and bad.ndim > eager.ndim:
            bad = bad.any(-1)
        place = tuple(bad.nonzero()[0].tolist())
        detail = f"{where}[{place}]: {ours[place].item()}, eager {eager[place].item()}"
        return "value", detail

    def _may_differ(self, ours: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
        """Where a gradient may be NaN in one of the two alone."""
        may = torch.zeros_like(ours, dtype=torch.bool)
        if leeway.has_step(self.words):
            may |= eager.isnan() & ours.isfinite()
        if leeway.has_rounded_quotient(self.words):
            may |= ours.isnan() & eager.isfinite()
        if "scaled_dot_product_attention(" in self.words:
            may |= ours.isnan() & eager.isinf()  # each kernel sums blocks of its own size
        return may


def _is_zero_gradient(where: str, expected: Any) -> bool:
    is_zero = (expected == 0) | expected.isnan()  # torch multiplies zero by NaN, too
    return where.startswith("gradient") and bool(is_zero.all())


def _has(seen: Seen, where: str) -> bool:
    return isinstance(seen.values.get(where), torch.Tensor)


def _in_double(text: str, call: int, names: Any) -> Seen:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        scope = scope_of(in_place_of(text, tolerance.DOUBLE).replace("complex64", "complex128"))
        return observe(scope["program"], scope, call, names)
    finally:
        torch.set_default_dtype(before)


def text_of_body(text: str) -> str:
    """What `program` does, without the helpers above it and the calls below."""
    return text[text.index("def program(") : text.index("def call_0")]


def in_place_of(text: str, dtypes: dict[str, str]) -> str:
    """The program in other dtypes; its arguments still hold the numbers of their own."""
    for name, other in dtypes.items():
        text = text.replace(f"made(torch.{name},", f"rounded('{name}', '{other}',")
        text = re.sub(rf"torch\.{name}\b", f"torch.{other}", text)
    return text.replace(".half()", f".to(torch.{dtypes['float16']})").replace(
        ".float()", f".to(torch.{dtypes.get('float32', 'float32')})"
    )


def scope_of(text: str) -> dict[str, Any]:
    """The names that a program's text defines."""
    scope: dict[str, Any] = {"__name__": "fuzzed"}
    exec(compile(text, "<program>", "exec"), scope)

    def rounded(name: str, other: str, shape: Any, values: Any) -> torch.Tensor:
        made: torch.Tensor = scope["made"](getattr(torch, name), shape, values)
        return made.to(getattr(torch, other))

    scope["rounded"] = rounded
    return scope


# ---- one call


def observe(run: Callable[..., Any], scope: dict[str, Any], call: int, names: Any) -> Seen:
    """Calls it, forward and backward, and copies all there is to see."""
    seen = Seen()
    arguments = scope["CALLS"][call]()
    try:
        results = run(*arguments)
        named = dict(zip(names[1], results, strict=True))
        memory = _memory({f"argument {n}": a for n, a in zip(names[0], arguments, strict=True)})
        seen.sharing = frozenset(
            (f"result {n}", owner)
            for n, r in named.items()
            for owner, place in memory.items()
            if _place(r) == place
        )
        if "between" in scope:
            before = _versions(arguments)
            scope["between"](arguments, results)
            seen.wrote_argument = _versions(arguments) != before
        gradients = _gradients(named, names[0], arguments)
        seen.values.update({f"result {n}": _copied(r) for n, r in named.items()})
        seen.values.update(gradients)
        for name, one in zip(names[0], arguments, strict=True):
            seen.values[f"argument {name}"] = _copied(one)
    except Exception as error:
        seen.error = origin(error)
    return seen


def _versions(values: Sequence[Any]) -> list[int]:
    """How often each was written, by whatever name."""
    return [one._version for one in values if isinstance(one, torch.Tensor)]


def keeping() -> torch.autograd.graph.saved_tensors_hooks:
    """A backward reads the values that the forward had, whatever was written since."""
    return torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda one: one)


def _gradients(results: dict[str, Any], names: Sequence[str], arguments: Sequence[Any]) -> Any:
    """Those of all results that have one; zeros where torch says None."""
    leaves = {n: a for n, a in zip(names, arguments, strict=True) if _asks(a)}
    wanted = [r for r in results.values() if _asks(r)]
    if not leaves or not wanted:
        return {}
    seeds = [_seed(one) for one in wanted]
    found = torch.autograd.grad(wanted, list(leaves.values()), seeds, allow_unused=True)
    return {
        f"gradient {n}": torch.zeros_like(_copied(leaf)) if g is None else _copied(g)
        for (n, leaf), g in zip(leaves.items(), found, strict=True)
    }


def _asks(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _seed(result: torch.Tensor) -> torch.Tensor:
    pattern = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    repeated = pattern.repeat(result.numel() // 3 + 1)[: result.numel()]
    return repeated.reshape(result.shape).to(result.dtype).to(result.device)


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().resolve_conj().resolve_neg().cpu().clone()


def _memory(named: dict[str, Any]) -> dict[str, int]:
    return {n: place for n, value in named.items() if (place := _place(value))}


def _place(value: Any) -> int:
    """Where its memory begins; 0 if it has none."""
    is_any = isinstance(value, torch.Tensor) and value.numel()
    return value.untyped_storage().data_ptr() if is_any else 0


def _kind_of(found: Any, expected: Any) -> tuple[str, str]:
    if not isinstance(expected, torch.Tensor) or not isinstance(found, torch.Tensor):
        same = type(found) is type(expected) and repr(found) == repr(expected)
        return ("", "") if same else ("value", f"{found!r}, eager {expected!r}")
    if found.dtype != expected.dtype:
        return "dtype", f"{found.dtype}, eager {expected.dtype}"
    if found.shape != expected.shape:
        return "shape", f"{tuple(found.shape)}, eager {tuple(expected.shape)}"
    return "", ""


def _identical(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if expected.dtype.is_floating_point and expected.dtype.itemsize == 1:
        return torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    if expected.dtype is torch.complex32:  # of which torch compares none
        return torch.equal(torch.view_as_real(found), torch.view_as_real(expected))
    return torch.equal(found, expected)


def origin(error: Exception) -> BaseException:
    """The error of a bug, of which a build makes a typed one."""
    return (error.__cause__ or error) if isinstance(error, BuildError) else error


def is_internal(error: BaseException) -> bool:
    """Whether it is an untyped error that a line of thunder_fuser raised."""
    if isinstance(error, FuserError) or not isinstance(error, INTERNAL):
        return False
    if OF_INDEXING in str(error):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(PACKAGE)


def place_of(error: BaseException, everywhere: bool = False) -> str:
    """The last function on the way to it, of ours or of all."""
    frames = traceback.extract_tb(error.__traceback__)
    found = [one for one in frames if everywhere or one.filename.startswith(PACKAGE)]
    return f"{Path(found[-1].filename).name}:{found[-1].name}" if found else ""


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
