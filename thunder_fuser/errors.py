# SPDX-License-Identifier: Apache-2.0
"""The errors and warnings that users see, one class for each kind of failure.

A message names the thing, what was expected, what came, where, and what to do:

>>> str(DefinitionError("T0", expected="rank 2", got="rank 3", do="pass a matrix"))
'T0: expected rank 2, got rank 3. To fix it: pass a matrix.'
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class FuserError(Exception):
    """The base of all errors raised by thunder_fuser.

    lines: text after the first sentence, line by line. folder: where the stages before the failure
    were written, or None.
    """

    folder: Path | None = None

    def __init__(
        self,
        thing: str,
        *,
        expected: str = "",
        got: str = "",
        where: str = "",
        do: str = "",
        lines: tuple[str, ...] = (),
    ) -> None:
        self.thing = thing
        self.facts: dict[str, Any] = {
            "expected": expected, "got": got, "where": where, "do": do, "lines": lines
        }
        facts = [f"expected {expected}"] * bool(expected) + [f"got {got}"] * bool(got)
        text = f"{thing}: {', '.join(facts)}" if facts else thing
        text += f" (at {where})" * bool(where)
        text += f". To fix it: {do}." * bool(do)
        super().__init__("\n".join([text, *lines]))

    @property
    def sentence(self) -> str:
        """The message without the lines that follow it."""
        return str(self).partition("\n")[0]

    def at(self, where: str) -> Self:
        """The same error with a location; unchanged if it has one."""
        return self if self.facts["where"] else self._with(where=where)

    def followed_by(self, lines: Iterable[str]) -> Self:
        """The same error with more lines."""
        return self._with(lines=(*self.facts["lines"], *lines))

    def _with(self, **facts: object) -> Self:
        changed = type(self)(self.thing, **{**self.facts, **facts})
        changed.__dict__ = {**self.__dict__, **changed.__dict__}
        changed.__cause__ = self.__cause__
        return changed


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most similar to a wrong one; empty if none is similar.

    >>> nearest("strickt", ["strict", "fuel"]), nearest("colour", ["strict", "fuel"])
    ('strict', '')
    """
    return next(iter(get_close_matches(name, list(known), n=1)), "")


def unknown_name(what: str, name: str, known: Collection[str], got: str = "") -> OptionError:
    """The error for a name that is not known. got: the user's text, if it differs from the name."""
    near = nearest(name, known)
    expected, do = f"one of {', '.join(known)}", f"write {near}" * bool(near)
    return OptionError(what, expected=expected, got=got or name, do=do)


def shown(value: object) -> str:
    """A value as a short text for a message, its type first. Never raises.

    >>> shown(2.5), shown("x"), shown(None)
    ('float 2.5', "str 'x'", 'NoneType None')
    """
    kind = type(value).__name__
    try:
        text = repr(value)
    except Exception:  # repr raises for an int of many digits, and may raise for any object
        return kind
    return f"{kind} {text}" if len(text) <= _MOST_SHOWN else f"{kind} {text[:_MOST_SHOWN]}..."


_MOST_SHOWN = 200


class DefinitionError(FuserError, ValueError):
    """An invalid fusion definition: a bad operand, axis or shape, or no output."""


class UnknownOpError(DefinitionError, AttributeError):
    """A name that `fd.ops` does not have."""


class DtypeError(DefinitionError, TypeError):
    """A dtype that the fuser or an op does not support."""


class StrideOrderError(DefinitionError):
    """A stride order that is not a permutation of its axes."""


class AliasError(DefinitionError):
    """Outputs written into the same input, or an alias whose shape or dtype differs."""


class MeshError(DefinitionError):
    """An invalid mesh, or tensors whose meshes or shardings do not match."""


class CommunicationError(MeshError):
    """An expression on sharded tensors that needs elements of other devices."""


class PeerError(FuserError, RuntimeError):
    """Another rank of a group runs another program, or did not answer in time."""


class InputError(FuserError, ValueError):
    """Arguments of a call that do not match the definition: number, rank, size, dtype, device."""


class OutOfRangeError(FuserError, IndexError):
    """An index tensor holds a number outside the indexed axis."""


class TorchCallError(FuserError, RuntimeError):
    """torch raised an error in an operation that a fusion leaves to torch."""


class InPlaceError(FuserError, RuntimeError):
    """A write in place that cannot be differentiated."""


class OptionError(FuserError, ValueError):
    """An unknown option, or a value that the option does not take."""


class CopyError(FuserError, TypeError):
    """A jitted module that can be neither copied nor pickled."""


class TargetError(FuserError, ValueError):
    """An unknown target, or one that this machine cannot run."""


class ScheduleError(FuserError):
    """A transform names a missing axis, or no scheduler accepts an operation."""


class GivenScheduleError(ScheduleError, ValueError):
    """A schedule that a call gives is not a legal one of its segment."""


class VerifyError(FuserError):
    """A Fusion, a schedule or a kernel breaks a rule of its IR, because a pass has a bug."""


class CompileError(FuserError):
    """NVRTC or the system's compiler rejected a generated kernel.

    text: the source that it read. log: all its messages. files: the names of both in `folder`.
    """

    text = log = ""
    files: tuple[str, ...] = ()


class BuildError(FuserError):
    """A fusion could not be built: the system raised an error, or the fuser has a bug."""


class ToolchainError(FuserError):
    """A compiler or a library is missing or does not work."""


class CacheMissError(FuserError):
    """A kernel is not in the cache although the option assert_cache_hit is set."""


class ArchiveError(FuserError):
    """A file of exported kernels that cannot be read or written."""


class ReportError(FuserError, OSError):
    """A report that cannot be written."""


class CacheWarning(UserWarning):
    """The store on disk, or one kernel in it, is unusable; kernels are compiled instead."""


class FallbackWarning(UserWarning):
    """Torch runs what is jitted: ops that could not be compiled, a part of a graph, generate()."""


class CommunicationWarning(UserWarning):
    """The devices of a group cannot be used as planned; torch's collectives run instead."""


class GraphWarning(UserWarning):
    """Calls could not be captured in a CUDA graph; they are launched one by one instead."""


class LostWriteWarning(UserWarning):
    """A jitted module's forward sets an attribute that is not kept."""


class DumpWarning(UserWarning):
    """The folder of the option dump cannot be written any more; the dump is incomplete."""


class OptionWarning(UserWarning):
    """A name that looks like an option of the fuser, but is none, so it has no effect."""


class SlowCompileWarning(UserWarning):
    """A compilation takes unusually long."""


class LaunchError(FuserError):
    """The driver rejected a launch, or a launch is not allowed at this time."""


class CaptureBusyError(LaunchError):
    """A CUDA graph cannot be captured now; a later call tries again."""


class ThunderLimitError(FuserError, NotImplementedError, AssertionError):
    """Thunder's interpreter cannot read a program; of the kinds that Thunder raises."""


class EmulatorError(FuserError):
    """A kernel on the emulator broke a rule, such as bounds, alignment or barriers."""


class UnsupportedVersionError(FuserError, ImportError):
    """The installed torch or Thunder has an unsupported version."""
