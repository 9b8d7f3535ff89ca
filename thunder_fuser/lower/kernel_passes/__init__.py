# SPDX-License-Identifier: Apache-2.0
"""Passes over a kernel's tree, and its verifier."""
