# SPDX-License-Identifier: Apache-2.0
"""torch.compile's front end: a function with a branch on a value.

`thunder.jit` traces one side of such a branch. `thunderfx` splits the function there, compiles the
parts, and Python decides between them at each call.

Run it: python examples/dynamo.py
"""

from thunder_fuser import fuser  # before thunder, which otherwise warns of a missing package

import torch
from thunder.dynamo import ThunderCompiler, thunderfx

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def clipped(x: torch.Tensor, limit: float) -> torch.Tensor:
    """x, scaled down if its norm is over the limit."""
    norm = (x * x).sum().sqrt()
    if norm.item() > limit:
        return x * (limit / norm)
    return x.clone()


def main() -> None:
    torch.manual_seed(0)
    short, long = (torch.randn(1000, device=DEVICE) * scale for scale in (0.01, 10.0))
    for name, compiled in (
        ("thunderfx", thunderfx(clipped, executors=[fuser])),
        ("torch.compile", torch.compile(clipped, backend=ThunderCompiler(executors=[fuser]))),
    ):
        for x in (short, long):
            result = compiled(x, 5.0)
            torch.testing.assert_close(result, clipped(x, 5.0))
            print(f"{name}: a norm of {x.norm():.2f} becomes {result.norm():.2f}")


main()
