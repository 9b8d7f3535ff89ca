# SPDX-License-Identifier: Apache-2.0
"""Bytes that a model's forward keeps for its backward: ours, Thunder's own, torch.compile's.

measure   live tensors of one model        floor   what any policy keeps
rows      the bounds, and why one cannot be met    run   all of it: table and JSON
"""
