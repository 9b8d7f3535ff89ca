# SPDX-License-Identifier: Apache-2.0
"""The interface to Thunder: supported symbols, regions, and the functions that a trace calls."""
