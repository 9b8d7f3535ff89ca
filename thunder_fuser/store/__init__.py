# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels on disk: one file each, in the user's cache folder. See docs/caches.md."""
