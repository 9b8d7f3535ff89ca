# SPDX-License-Identifier: Apache-2.0
"""The host side: programs of allocations and launches, which print as Python."""
