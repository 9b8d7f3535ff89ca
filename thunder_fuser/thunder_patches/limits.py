# SPDX-License-Identifier: Apache-2.0
"""An error of Thunder's interpreter -> ThunderLimitError: what it cannot read, where, what to do.

    AssertionError: trying to set .attention of ProvenanceRecord(  ...  21 lines

->  Thunder cannot trace this program: expected what its interpreter can read, got an assignment of
    a str to .attention of an object that stays after the call (at model.py:12). To fix it: ...

Thunder refuses an assignment when it has read the whole program, so its line is noted before.
Errors of the user's program, and ours, stay as they are. Where torch.func stopped half way, what it
had set is reset: else each later call of torch would be of its wrapped tensors.
"""

from __future__ import annotations

import traceback
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import thunder
import torch
from thunder.core import interpreter, jit_ext
from thunder.core.interpreter import InterpreterError, get_interpreterruntimectx, unwrap
from torch._C import _functorch
from torch._functorch import eager_transforms
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx

from thunder_fuser.base.warn import line_of_the_call
from thunder_fuser.errors import FuserError, ThunderLimitError
from thunder_fuser.thunder_patches.patch import Hooks

_THUNDER = Path(thunder.__file__).parent
_LIBRARIES = {_THUNDER, Path(torch.__file__).parent, Path(__file__).parents[1]}
_REFUSES_STORES = jit_ext.process_recorded_modifications.__code__  # before patches replace it
_READS_FRAME = interpreter._run_frame.__code__
_OF_LIMITS = (AssertionError, NotImplementedError, InterpreterError)
_IN_WORDS = (  # how Thunder begins or ends what it says of tensors and functions of torch
    "Unknown attribute ", "Trying to call function ", "Mode arguments other than ",
    "had an unexpected type ",
)  # fmt: skip
_OF_CONTEXTS = {"needs_input_grad", *vars(FunctionCtx)}  # of those that Thunder's has not
_BY_DYNAMO = (
    "call thunder.dynamo.thunderfx(function_or_module, executors=[fuser]) instead of jit: it runs"
    " such lines in Python, and compiles the others"
)
_TORCH_FUNC = str(Path("torch", "_functorch"))
_STORES = "stores"  # an attribute of Thunder's context: {(id of its dict, name): file:line}


def explain_limits(hooks: Hooks) -> None:
    """From now on, functions jitted with this executor tell Thunder's limits so."""
    of_thunder = thunder.thunder_general_jit

    @wraps(of_thunder)
    def traced(fn: Any, *args: Any, **options: Any) -> Any:
        before = _TorchFunc()
        try:
            return of_thunder(fn, *args, **options)
        except Exception as error:
            # thunderfx, which would be advised, gives graphs of torch.compile.
            is_ours = hooks.compilation() is not None and not isinstance(fn, torch.fx.GraphModule)
            vars(error)["of_tracing"] = True  # nothing has run
            limit = _limit(error, before.restore()) if is_ours else None
            if limit is None:
                raise
            raise limit from None if limit is error.__cause__ else error

    thunder.thunder_general_jit = traced
    for method in (dict.__setitem__, jit_ext.collections.OrderedDict.__setitem__):
        _note_stores(method)


def _note_stores(method: Any) -> None:
    """Notes the user's line of each assignment to an attribute that Thunder makes by the method."""
    of_thunder = jit_ext._general_jit_lookaside_map[method]

    @wraps(of_thunder)
    def stored(d: Any, key: Any, value: Any) -> Any:
        if d.provenance.ext_flag & jit_ext.EXT_FLAG_IS_MODULE_MEMBER_DICT:
            file, place = get_interpreterruntimectx().get_current_user_source_location()
            lines = vars(jit_ext.get_jit_ctx()).setdefault(_STORES, {})
            lines[id(d), unwrap(key)] = f"{file}:{place.lineno}" if file and place else ""
        return of_thunder(d, key, value)

    jit_ext._general_jit_lookaside_map[method] = stored


class _TorchFunc:
    """What torch.func sets in this thread while a transform is open, and resets at its end."""

    def __init__(self) -> None:
        self.levels = len(_functorch.get_interpreter_stack() or ())
        self.why_no_hooks = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
        self.allows_in_place = _functorch.get_inplace_requires_grad_allowed()

    def restore(self) -> bool:
        """Ends what was opened since; True if there was any."""
        now = _TorchFunc()
        if vars(now) == vars(self):
            return False
        for _ in range(now.levels - self.levels):
            is_jvp = _functorch.peek_interpreter_stack().key() == _functorch.TransformType.Jvp
            _functorch.pop_dynamic_layer_stack()
            eager_transforms.JVP_NESTING -= is_jvp  # of all threads, as the level of dual tensors
            if is_jvp and not eager_transforms.JVP_NESTING and forward_ad._current_level >= 0:
                forward_ad.exit_dual_level()
        _functorch.set_inplace_requires_grad_allowed(self.allows_in_place)
        if self.why_no_hooks is None:
            torch._C._autograd._saved_tensors_hooks_enable()
        return True


def _limit(error: BaseException, in_torch_func: bool) -> FuserError | None:
    """The error in words, or ours that is its cause; None if it is the user's."""
    if isinstance(error, InterpreterError) and isinstance(error.__cause__, FuserError):
        return error.__cause__
    frames = [*traceback.walk_tb(error.__traceback__)]
    last, _ = frames[-1]
    frames += _interpreted(error.__cause__)
    do = _BY_DYNAMO
    if in_torch_func or any(_TORCH_FUNC in frame.f_code.co_filename for frame, _ in frames):
        (_, where), got = _read(error, frames), "a transform of torch.func"
        do = "call the function that uses torch.func without jit, and jit what it does not call"
    elif isinstance(error, AttributeError) and str(error) in _OF_CONTEXTS:
        (_, where), got = _read(error, frames), f"ctx.{error} of an autograd.Function"
    elif isinstance(error, _OF_LIMITS) and _THUNDER in Path(last.f_code.co_filename).parents:
        got, where = _stored(last) or _read(error, frames)
    elif any(words in str(error) for words in _IN_WORDS) and _is_of_torch(error, last):
        got, where = _read(error, frames)
    else:
        return None
    return ThunderLimitError(
        "Thunder cannot trace this program", expected="what its interpreter can read", got=got,
        where=where or line_of_the_call(), do=do,
    )  # fmt: skip


def _is_of_torch(error: BaseException, last: FrameType) -> bool:
    """True for what torch has and Thunder lacks; False for a name that is wrong in torch too."""
    _, unknown, name = str(error).partition(_IN_WORDS[0])
    if unknown:
        return hasattr(torch.Tensor, name)
    is_of_thunder = _THUNDER in Path(last.f_code.co_filename).parents
    return is_of_thunder or isinstance(error, NotImplementedError)


def _interpreted(cause: BaseException | None) -> list[tuple[FrameType, int]]:
    """What Thunder's interpreter read when it failed itself, which is not in its traceback."""
    inside = traceback.walk_tb(getattr(cause, "__traceback__", None))
    read = [frame.f_locals["frame"] for frame, _ in inside if frame.f_code is _READS_FRAME]
    return [(frame.get_or_make_python_frame(), frame.positions.lineno) for frame in read]


def _stored(frame: FrameType) -> tuple[str, str] | None:
    """The assignment that Thunder refuses and its line, if this frame is of such a refusal."""
    names = frame.f_locals
    if frame.f_code is not _REFUSES_STORES or "k" not in names:
        return None
    kind, owner = type(unwrap(names["value"])).__name__, names["modified_object"]
    what = f"an assignment of {'an' if kind[0] in 'aeiou' else 'a'} {kind} to .{names['k']}"
    where = getattr(names["ctx"], _STORES, {}).get((id(owner), names["k"]), "")
    return f"{what} of an object that stays after the call", where


def _read(error: BaseException, frames: list[tuple[FrameType, int]]) -> tuple[str, str]:
    """Thunder's words, or the line of its assertion; and the innermost line of the user's."""
    text = str(error).partition("ProvenanceRecord(")[0].strip().partition("\n")[0]
    text = text.partition(". Please file an issue")[0]
    text = text or traceback.extract_tb(error.__traceback__)[-1].line or ""
    of_user = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in frames if _LIBRARIES.isdisjoint(Path(frame.f_code.co_filename).parents)
    ]
    return f"{type(error).__name__}: {text}", of_user[-1] if of_user else ""
