# SPDX-License-Identifier: Apache-2.0
"""Two steps of the choice between the pieces of a cat had one name, where both are never taken."""

from __future__ import annotations

import torch
from helpers.cases import Runner, rand

from thunder_fuser.definition import FusionDefinition


def test_a_piece_of_a_cat_of_four(run: Runner) -> None:
    x = rand(12, 5)
    whole = torch.cat(x.chunk(4), 1)

    def fusion(fd: FusionDefinition) -> None:
        value = fd.from_pytorch(x)
        pieces = [fd.ops.slice(value, [at, 0], [at + 3, 5]) for at in range(0, 12, 3)]
        value = fd.ops.exp(fd.ops.cat(pieces, 1))
        fd.add_output(fd.ops.slice(value, [0, 0], [3, 5]))

    run(fusion, [x], [whole.exp()[:, :5]])
