# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels on disk: one file each, in a folder of the user's own. See docs/caches.md."""
