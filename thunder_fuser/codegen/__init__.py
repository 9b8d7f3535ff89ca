# SPDX-License-Identifier: Apache-2.0
"""Kernel -> source text: one printer for the C family, two dialects, and a prelude to paste."""
