# SPDX-License-Identifier: Apache-2.0
"""The public FusionDefinition: nvFuser's language, plus execute and plan.

with FusionDefinition() as fd:
    x = fd.from_pytorch(tensor)
    fd.add_output(fd.ops.mul(x, 2.0))
(result,) = fd.execute([tensor])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from thunder_fuser.cache.executable import Schedules, target_for
from thunder_fuser.cache.trie import FusionCache, FusionEntry
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.compiler import kernel_sources, plan_segments
from thunder_fuser.compiler import schedules as scheduled
from thunder_fuser.errors import DefinitionError, GivenScheduleError, InputError, shown
from thunder_fuser.host.call.arguments import check_arguments, device_of
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.host.call.nvfuser_options import check_options, check_same_device
from thunder_fuser.host.programs.overlap import with_decisions
from thunder_fuser.host.programs.program import HostProgram
from thunder_fuser.host.script import repro_text
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Operand, OpRecord, definition_text
from thunder_fuser.options import compile_options
from thunder_fuser.presegment.specialise import InputKey
from thunder_fuser.runtime.torch_types import from_torch_dtype
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.schedule.written.schedule import ScheduleSource
from thunder_fuser.segment.plan import SegmentedFusion, with_params
from thunder_fuser.target import Target, named


class FusionDefinition(Recorder):
    """A definition that can be executed: a context manager, or a base class with `definition()`."""

    def __init__(self) -> None:
        super().__init__()
        self._entry: FusionEntry | None = None
        self._schedules: dict[int | str, ScheduleSource] = {}

    def __enter__(self) -> FusionDefinition:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            _ = self.entry  # raise errors of the definition inside the block that wrote it

    def record(self, record: OpRecord) -> None:
        if self._entry is not None:
            raise DefinitionError(
                f"fd.{record.op}", expected="calls before the first execute", got="a call after it"
            )
        if record.op == "add_output" and not record.attrs and self._is_reshaped(record.inputs[0]):
            record = replace(record, attrs=(("shares", True),))
        super().record(record)

    def _is_reshaped(self, name: Operand) -> bool:
        """True if the value is an argument that was only reshaped. nvFuser returns it as a view."""
        maker = next((record for record in reversed(self._records) if name in record.outputs), None)
        if maker is None or maker.op != "reshape":
            return False
        source = maker.inputs[0]
        is_argument = any(r.op == "define_tensor" and source in r.outputs for r in self._records)
        return is_argument or self._is_reshaped(source)

    def from_pytorch(self, tensor: torch.Tensor, static_sizes: bool = False) -> Tensor:
        """An input with the tensor's dtype, stride order, contiguity and, if asked, sizes."""
        if not isinstance(tensor, torch.Tensor):
            raise InputError("from_pytorch", expected="a tensor", got=type(tensor).__name__)
        is_cpu = tensor.device.type == "cpu" and tensor.dim() == 0
        return self.define_tensor(
            sizes=list(tensor.shape),
            strides=list(tensor.stride()),
            dtype=from_torch_dtype(tensor.dtype),
            static_sizes=static_sizes,
            is_cpu=is_cpu,
        )

    @property
    def entry(self) -> FusionEntry:
        """The cache entry of the finished definition."""
        if self._entry is None:
            method = getattr(type(self), "definition", None)
            if not self._records and callable(method):  # a subclass's `definition()`
                method(self)
            self._entry = FusionCache.get().look_up(tuple(self._records))
        return self._entry

    @property
    def fusion(self) -> Fusion:
        """The typed Fusion."""
        return self.entry.fusion

    def execute(
        self,
        inputs: Sequence[Any],
        *,
        target: str | Target | None = None,
        schedules: Mapping[int | str, ScheduleSource] | None = None,
        device: Any = None,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> list[Any]:
        """Runs the fusion on tensors and numbers, in the order of their definitions.

        A list of numbers gives that many scalars, those of a define_vector. Pass a tensor with its
        own allocation domain as a storage, as an AllocatedTensor, or as a pair (storage, meta
        tensor of the logical shape). Such a result is an AllocatedTensor.

        target: "cpu" or "emulator" for CPU tensors; the default is the tensors' device.
        schedules: {segment of the plan, by number or name: its schedule}, beside those of
        `fd.schedule`. A schedule is a text as `schedules` prints it, or a function of a Schedule.
        device, _enable_options, _disable_options: nvFuser's, refused where they would change
        something (host/call/nvfuser_options.py).
        Raises InputError naming the argument that does not fit, and GivenScheduleError naming the
        axis and the rule that a schedule breaks.
        """
        entry, flat, fixed = self.entry, self._flat(inputs), self._scheduled(schedules)
        if device is not None or _enable_options or _disable_options:
            check_options("_enable_options", _enable_options)
            check_options("_disable_options", _disable_options)
            executable, values = entry.prepare().bind(flat)
            check_same_device(device, device_of(executable.fusion, values))
        on = None if target is None else named(target)
        return entry.execute(flat, on, fixed)

    def schedule(self, segment: int | str, source: ScheduleSource | None) -> None:
        """Schedules a segment from now on by a text or by a function of a Schedule; None restores
        the scheduler's own. A function is compared by identity, and runs when a kernel compiles."""
        if not isinstance(segment, (int, str)):
            expected = "the number or the name of a segment"
            raise GivenScheduleError("fd.schedule", expected=expected, got=shown(segment))
        self._schedules.pop(segment, None)
        if source is not None:
            self._schedules[segment] = _checked_schedule(segment, source)

    def _scheduled(self, schedules: Mapping[int | str, ScheduleSource] | None = None) -> Schedules:
        if not isinstance(schedules, Mapping | None):
            expected = "{segment: a text or a function}"
            raise GivenScheduleError("schedules", expected=expected, got=shown(schedules))
        more = {at: _checked_schedule(at, source) for at, source in (schedules or {}).items()}
        return tuple({**self._schedules, **more}.items())

    def schedules(
        self,
        inputs: Sequence[Any],
        *,
        target: str | Target = "cpu",
        schedules: Mapping[int | str, ScheduleSource] | None = None,
    ) -> tuple[ScheduledFusion | None, ...]:
        """The schedule of each segment for these inputs, None where torch runs it.

        `execute` accepts a schedule's text. Meta tensors suffice; compiles nothing.
        """
        fusion, _, keys = self._keyed(inputs)
        options = compile_options(self._scheduled(schedules))
        return tuple(scheduled(plan_segments(fusion, keys, named(target), options), keys, options))

    def program(self, inputs: Sequence[Any], *, target: str | Target | None = None) -> HostProgram:
        """The program for these inputs, compiled on a miss. It has text, segments and sources."""
        on = None if target is None else named(target)
        return self.entry.program_for(self._flat(inputs), on, schedules=self._scheduled())

    def repro_script_for(self, inputs: Sequence[Any]) -> str:
        """A script that runs the definition on tensors of the same layouts, with other values."""
        check_arguments(self.fusion, self._flat(inputs))
        return repro_text("fusion", "a FusionDefinition", self.records, _listed(inputs))

    def sources(
        self, inputs: Sequence[Any], *, target: str | Target | None = None
    ) -> tuple[KernelSource, ...]:
        """The kernels for these inputs on a target, as text. Meta tensors suffice.

        Compiles nothing. target: the default is that of the tensors' device, "cpu" for meta
        tensors. Raises InputError naming the argument that does not fit.
        """
        fusion, values, keys = self._keyed(inputs)
        options = compile_options(self._scheduled())
        chosen = target_for(device_of(fusion, values), options) if target is None else named(target)
        return kernel_sources(fusion, keys, chosen, options)

    def plan(self, inputs: Sequence[Any], *, target: str | Target = "cpu") -> SegmentedFusion:
        """The segments for these inputs on a target. Meta tensors suffice; compiles nothing.

        Products with communication have the cost model's decision, with its numbers.
        """
        fusion, _, keys = self._keyed(inputs)
        chosen = named(target)
        segmented = with_params(plan_segments(fusion, keys, chosen, compile_options()))
        return with_decisions(segmented, chosen)

    def _keyed(self, inputs: Sequence[Any]) -> tuple[Fusion, Sequence[Any], tuple[InputKey, ...]]:
        """The fusion for these inputs, the memory behind them, and their keys."""
        executable, values = self.entry.prepare().bind(self._flat(inputs))
        check_arguments(executable.fusion, values)
        return executable.fusion, values, input_keys(executable.fusion, tuple(values))

    def _flat(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """[x, [3, 4]] -> [x, 3, 4]. A pair with a tensor stays; a complex scalar becomes its two
        parts."""
        inputs = _listed(inputs)
        if not self.complex_at:
            return inputs
        apart = [_parts(v) if at in self.complex_at else [v] for at, v in enumerate(inputs)]
        return [value for parts in apart for value in parts]

    def __repr__(self) -> str:
        return definition_text(self.records) if self._entry is None else str(self.fusion)


def _checked_schedule(segment: object, source: ScheduleSource) -> ScheduleSource:
    if not isinstance(source, str) and not callable(source):
        thing = f"schedule of segment {segment}"
        raise GivenScheduleError(thing, expected="a text or a function", got=shown(source))
    return source


def _listed(inputs: Sequence[Any]) -> Sequence[Any]:
    if isinstance(inputs, torch.Tensor) or not hasattr(inputs, "__iter__"):
        do = "write fd.execute([x]) for one argument"
        raise InputError("the call", expected="a list of arguments", got=shown(inputs), do=do)
    if not any(isinstance(value, (list, tuple)) for value in inputs):
        return inputs
    return [value for item in inputs for value in (item if _is_vector(item) else [item])]


def _parts(value: Any) -> list[Any]:
    """The real and imaginary part of a number. Another value is refused by later checks."""
    if isinstance(value, torch.Tensor) and value.is_complex():
        return list(torch.view_as_real(value.resolve_conj()).unbind(-1))
    return [value.real, value.imag] if isinstance(value, (int, float, complex)) else [value]


def _is_vector(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(element, int) for element in value)
