# SPDX-License-Identifier: Apache-2.0
"""Segments of the final trace -> CUDA graphs, by the option cuda_graphs."""
