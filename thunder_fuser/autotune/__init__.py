# SPDX-License-Identifier: Apache-2.0
"""Schedulers: each says which parts it accepts, chooses parameters, and transforms the axes."""
