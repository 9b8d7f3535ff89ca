# SPDX-License-Identifier: Apache-2.0
"""One rank of three or eight: pipelines and communication in definitions, with tiny tensors.

Run by tests/communication/test_processes.py and tests/gpu/test_overlap.py, or by hand:

    torchrun --nproc-per-node 8 tests/helpers/many_ranks.py [cuda]

With cuda, ranks share GPUs, and only pipelines run.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from helpers import gloo_communication as definitions
from helpers import pipeline_ranks as pipelines
from helpers.one_rank import leave, run_checks


def main() -> None:
    pipelines.begin()
    run_checks([pipelines.check_results], turns=1, every=(2,))
    run_checks([pipelines.check_without_waiting], rounds=2)
    run_checks([pipelines.check_own_groups, pipelines.check_refusals])
    if pipelines.DEVICE.type == "cuda":  # definitions would need NCCL, with a GPU for each rank
        torch.cuda.synchronize()
        leave()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    run_checks([definitions.check_collectives, definitions.check_local_calls], mesh)
    run_checks([definitions.check_overlap], mesh, lowers=definitions.LOWERS[1:2])
    if mesh.size() < 8:  # many small steps: slow where eight processes share two cores
        run_checks([definitions.check_placements], mesh, dtypes=[torch.float32])
    leave()


if __name__ == "__main__":
    main()
