# SPDX-License-Identifier: Apache-2.0
"""The callable of a region: compiled ahead, called, replaced by torch if that fails."""
