# SPDX-License-Identifier: Apache-2.0
"""Every error a user can meet, each a class that says which kind of thing went wrong.

A message names the thing, what was expected, what came, where, and what to do:

>>> str(DefinitionError("T0", expected="rank 2", got="rank 3", do="pass a matrix"))
'T0: expected rank 2, got rank 3. To fix it: pass a matrix.'
"""

from __future__ import annotations


class FuserError(Exception):
    """The base of all errors raised by thunder_fuser."""

    def __init__(
        self, thing: str, *, expected: str = "", got: str = "", where: str = "", do: str = ""
    ) -> None:
        self.thing = thing
        self.facts = {"expected": expected, "got": got, "where": where, "do": do}
        facts = [f"expected {expected}"] * bool(expected) + [f"got {got}"] * bool(got)
        text = f"{thing}: {', '.join(facts)}" if facts else thing
        text += f" (at {where})" * bool(where)
        text += f". To fix it: {do}." * bool(do)
        super().__init__(text)

    def at(self, where: str) -> FuserError:
        """The same error that also says where; itself if it says so already."""
        if self.facts["where"]:
            return self
        return type(self)(self.thing, **{**self.facts, "where": where})


def shown(value: object) -> str:
    """A value for a message, its type first: short, and whatever its own text does.

    >>> shown(2.5), shown("x"), shown(None)
    ('float 2.5', "str 'x'", 'NoneType None')
    """
    kind = type(value).__name__
    try:
        text = repr(value)
    except Exception:  # repr of an int of many digits raises, and that of any object may
        return kind
    return f"{kind} {text}" if len(text) <= _MOST_SHOWN else f"{kind} {text[:_MOST_SHOWN]}..."


_MOST_SHOWN = 200


class DefinitionError(FuserError, ValueError):
    """A fusion definition that has no meaning: bad operand, axis, shape, or no output."""


class DtypeError(DefinitionError, TypeError):
    """A dtype that the fuser, or this op, does not take."""


class StrideOrderError(DefinitionError):
    """A stride order that is not a permutation of its axes."""


class AliasError(DefinitionError):
    """Outputs written into the same input, or an alias whose shape or dtype differs."""


class MeshError(DefinitionError):
    """A mesh that is none, or meshes and shardings of tensors that do not go together."""


class CommunicationError(MeshError):
    """An expression on sharded tensors whose result needs elements of other devices."""


class InputError(FuserError, ValueError):
    """Arguments of a call that do not match the definition: number, rank, size, dtype, device."""


class OutOfRangeError(FuserError, IndexError):
    """A tensor of indices that holds a number which is no index of the axis it is read along."""


class TorchCallError(FuserError, RuntimeError):
    """torch refused an operation that a fusion leaves to it."""


class OptionError(FuserError, ValueError):
    """An option that does not exist, or a value of the wrong type."""


class TargetError(FuserError, ValueError):
    """A target that does not exist, or that this machine cannot run."""


class ScheduleError(FuserError):
    """A transform applied to an axis that is not there, or no scheduler accepts an operation."""


class VerifyError(FuserError):
    """A Fusion, a schedule or a kernel that breaks a rule of its IR: a bug in a pass."""


class CompileError(FuserError):
    """The compiler (NVRTC or the system's) refused a generated kernel."""


class ToolchainError(FuserError):
    """A compiler or a library is not on this machine, or does not work here."""


class CacheMissError(FuserError):
    """A kernel had to be compiled where the option assert_cache_hit promised that none has to."""


class ArchiveError(FuserError):
    """A file of exported kernels that cannot be read or written."""


class CacheWarning(UserWarning):
    """A stored kernel, or the store, could not be used: kernels are compiled instead."""


class FallbackWarning(UserWarning):
    """Fusions could not be compiled: their torch ops run one by one instead."""


class SlowCompileWarning(UserWarning):
    """The compiler has not answered for long."""


class LaunchError(FuserError):
    """The driver refused to launch a kernel, or it must not be launched now."""


class EmulatorError(FuserError):
    """The emulator saw a kernel break a rule: bounds, alignment, uninitialised, barrier, race."""


class UnsupportedVersionError(FuserError, ImportError):
    """torch or Thunder is of a version that this package cannot use."""
