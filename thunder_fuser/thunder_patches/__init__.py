# SPDX-License-Identifier: Apache-2.0
"""Replacements of Thunder's internals that give wrong results, with any executor.

Each file replaces one part of Thunder, and says what, why, and what it does instead.
"""

from __future__ import annotations

from thunder.__about__ import __version__

from thunder_fuser.options import option
from thunder_fuser.thunder_patches.arguments import compare_arguments
from thunder_fuser.thunder_patches.attributes import write_attributes_back
from thunder_fuser.thunder_patches.autograd import repair_gradients
from thunder_fuser.thunder_patches.modules import repair_modules
from thunder_fuser.thunder_patches.shared_arguments import tell_arguments_apart
from thunder_fuser.thunder_patches.thread_state import keep_state_by_thread

_KNOWN = "0.2.6"


def install() -> None:
    """From now on, Thunder has these replacements. A version that is not known stays as it is."""
    if __version__ != _KNOWN or not option("thunder_fixes"):
        return
    keep_state_by_thread()
    compare_arguments()
    tell_arguments_apart()
    repair_modules()
    write_attributes_back()
    repair_gradients()
