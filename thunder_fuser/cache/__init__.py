# SPDX-License-Identifier: Apache-2.0
"""The cache: a trie over op records, and for each definition its programs by input key."""
