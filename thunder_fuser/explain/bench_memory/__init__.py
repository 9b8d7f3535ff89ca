# SPDX-License-Identifier: Apache-2.0
"""Bytes that a model's forward keeps for its backward: ours, Thunder's rules, torch.compile's.

    models.py  stacks of blocks         measure.py  live tensors of one of them
    run.py     table, bounds, JSON
"""
