# SPDX-License-Identifier: Apache-2.0
"""A process that runs programs: seeds come in, what became of them goes out, as lines of JSON.

{"seed": 5, "known": [["result value", ["torch.exp(_)"]]]}    ->    {"found": [...]}
                                                                    {"outcome": {"seed": 5, ...}}

Failures are told as they are before they are shrunk: whatever shrinking does to this process, they
are not lost.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.fuzz.findings import Finder, Outcome, make
from benchmarks.fuzz.post_mortem import examine

Tell = Callable[..., None]


def main() -> None:
    """`worker TARGET`: serves seeds.

    `worker TARGET show SEED`: prints the program.
    `worker TARGET crash SEED SECONDS` (or hang): looks at what ended another process.
    """
    target, *rest = sys.argv[1:]
    if rest[:1] == ["show"]:
        print(make(int(rest[1]), target))
        return
    # What is printed by what runs here must not come between the lines.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(**facts: Any) -> None:
        lines.write(json.dumps(facts) + "\n")

    torch.set_num_threads(1 if rest else 2)  # a fork has no other threads
    if rest:
        examine(target, rest[0], int(rest[1]), float(rest[2]), tell)
    else:
        _serve(target, tell)


def _serve(target: str, tell: Tell) -> None:
    finder = Finder(target, lambda found: tell(found=found))
    tell(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        finder.known |= {(kind, tuple(ops)) for kind, ops in order["known"]}
        tell(outcome=_run(finder, order["seed"]).as_json())


def _run(finder: Finder, seed: int) -> Outcome:
    """What became of a seed; an error of the fuzzer's own ends no run, but stands in its table."""
    try:
        return finder.run(seed)
    except Exception as error:
        traceback.print_exc()
        return Outcome(seed, aside=f"the fuzzer itself: {type(error).__name__}")


if __name__ == "__main__":
    main()
