# SPDX-License-Identifier: Apache-2.0
"""Definitions already seen: a trie over op records; below each leaf its programs by input key."""
