# SPDX-License-Identifier: Apache-2.0
"""Fusion -> SegmentedFusion: which expressions share a kernel."""
