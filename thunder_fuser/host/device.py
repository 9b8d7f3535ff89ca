# SPDX-License-Identifier: Apache-2.0
"""A CUDA device -> its Target, from the driver through torch."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from thunder_fuser.target import A100, H100, H200, Target


@cache
def target_of_device(index: int) -> Target:
    """The Target of a CUDA device: a known one, if the name matches, with the device's counts."""
    facts = torch.cuda.get_device_properties(index)
    known = {"H200": H200, "H100": H100, "A100": A100}
    base = next((t for word, t in known.items() if word in facts.name), A100)
    suffix = "a" if facts.major >= 9 else ""
    return replace(
        base,
        name=facts.name,
        arch=f"sm_{facts.major}{facts.minor}{suffix}",
        sm_count=facts.multi_processor_count,
        max_threads_per_sm=facts.max_threads_per_multi_processor,
        max_cluster=max(base.max_cluster, 8) if facts.major >= 9 else 1,
        smem_bytes_per_block=facts.shared_memory_per_block_optin,
    )
