# SPDX-License-Identifier: Apache-2.0
"""Facts computed from a Fusion, never stored in it."""
