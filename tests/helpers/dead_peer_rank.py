# SPDX-License-Identifier: Apache-2.0
"""One of two ranks that share a GPU: the second one dies, and the first one waits for it.

Run by tests/gpu/test_overlap.py.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from thunder_fuser import options
from thunder_fuser.communication.products.cost import Decision
from thunder_fuser.communication.products.pipelines import all_gather_matmul
from thunder_fuser.communication.transport.exchange import BufferLayout
from thunder_fuser.communication.transport.transports import exchange_for

SECONDS = 3


def main() -> None:
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    group, device = dist.group.WORLD, torch.device("cuda", 0)
    assert group is not None
    with options(peer_timeout=SECONDS):
        exchange_for(BufferLayout("all_gather", 1, 4, 8, torch.float32, 1), group, device)
        exchange_for(BufferLayout("all_gather", 1, 4, 8, torch.float32, 1), group, device)
    if dist.get_rank() == 1:
        os._exit(3)
    shard, weight = torch.ones(4, 8, device=device), torch.ones(8, 8, device=device)
    all_gather_matmul(shard, weight, group, Decision("", (0, 0, 0), "", 2, True, 1, 0.0, 0.0))
    torch.cuda.synchronize()  # never returns


if __name__ == "__main__":
    main()
