# SPDX-License-Identifier: Apache-2.0
"""A process that runs programs: seeds come in, what became of them goes out, as lines of JSON.

{"seed": 5, "known": [["result value", ["torch.exp(_)"]]]}    ->    {"outcome": {"seed": 5, ...}}


Before a program runs, its parent knows the seed; so whatever it does to this process is found.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import traceback
from typing import Any

import torch

from benchmarks.fuzz.findings import Finder, Outcome, verdict_of


def main() -> None:
    """`worker TARGET`: serves seeds. `worker TARGET PROGRAM`: runs one pickled program."""
    # What is printed by what runs here must not come between the lines.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(2)

    def tell(**facts: Any) -> None:
        lines.write(json.dumps(facts) + "\n")

    if len(sys.argv) > 2:
        verdict_of(pickle.loads(base64.b64decode(sys.argv[2])))
        return
    finder = Finder(sys.argv[1], lambda: tell(beat=True))
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
