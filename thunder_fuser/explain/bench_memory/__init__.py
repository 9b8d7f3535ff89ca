# SPDX-License-Identifier: Apache-2.0
"""Bytes that a model's forward keeps for its backward: ours, Thunder's own, torch.compile's.

    models.py  stacks of blocks         measure.py  live tensors of one of them
    floor.py   what any policy keeps    rows.py     the bounds, and why one cannot be met
    run.py     table and JSON
"""
