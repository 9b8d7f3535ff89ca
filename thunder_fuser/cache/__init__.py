# SPDX-License-Identifier: Apache-2.0
"""Definitions already seen: a trie over op records, and below each leaf the programs by input key."""
