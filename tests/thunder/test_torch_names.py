# SPDX-License-Identifier: Apache-2.0
"""What torch 2.13 and 2.14 took away, and Thunder 0.2.6 asks for: it is there again.

An older torch is given the built-in `apply` of torch 2.14; `make compat` has the real one.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from thunder_fuser.errors import UnsupportedVersionError
from thunder_fuser.thunder_patches import torch_names
from thunder_fuser.versions import parse

IS_NEW = parse(version("torch")) >= (2, 13)
LIKE_2_14 = """
import torch
has_names = hasattr(torch.Tensor, "has_names")
from torch.autograd.function import Function
Function.apply = vars(torch._C._FunctionBase)["apply"]
"""
TRAINED = """
class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result
    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]

x = torch.randn(4, requires_grad=True)
apply = Exp.apply
compiled = torch.compile(apply, backend="eager")
whole = [
    torch.compile(f, fullgraph=True, backend="eager")
    for f in (lambda x: Exp.apply(x), lambda x: apply(x))
]
for f in (apply, compiled, *whole, thunder.jit(apply, executors=[fuser])):
    x.grad = None
    f(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())
assert hasattr(x, "rename") == hasattr(x, "has_names") == has_names
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_a_torch_without_the_names_does() -> None:
    done = run(
        f"{LIKE_2_14}\n"
        "from thunder_fuser.thunder_patches.torch_names import put_back\n"
        "lacked = put_back()\n"
        "assert len(lacked) == (1 if has_names else 6) and lacked[-1] == 'Function.apply', lacked\n"
        f"assert put_back() == []\nimport thunder\nfrom thunder_fuser import fuser\n{TRAINED}"
    )
    assert done.returncode == 0, done.stderr


def test_thunder_alone_does_not_import_there() -> None:
    """If it does one day, these names need not be put back."""
    done = run(f"{LIKE_2_14}\nimport thunder")
    assert ("has no attribute 'align_as'" if IS_NEW else "no attribute '__func__'") in done.stderr


def test_a_torch_that_lacks_nothing_is_left_alone() -> None:
    done = run("import sys, thunder_fuser; print(*map(type, sys.meta_path))")
    assert done.returncode == 0, done.stderr
    assert ("_BeforeThunder" in done.stdout) == IS_NEW


def test_thunder_failed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence that says which import goes first."""
    monkeypatch.setattr(torch_names, "version", lambda name: "2.14.1")
    monkeypatch.delitem(sys.modules, "thunder", raising=False)
    monkeypatch.setitem(sys.modules, "thunder.core", sys)
    with pytest.raises(UnsupportedVersionError) as error:
        torch_names.watch_for_thunder()
    assert str(error.value) == (
        "lightning-thunder: expected thunder_fuser to be imported first, to give it what "
        "this torch lacks, got an import of thunder that failed with torch 2.14.1. To fix it: "
        "start again, with `import thunder_fuser` above `import thunder`."
    )


def test_thunder_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_names, "version", lambda name: "2.14.1")
    monkeypatch.setitem(sys.modules, "thunder", sys)
    before = [*sys.meta_path]
    torch_names.watch_for_thunder()
    assert sys.meta_path == before
