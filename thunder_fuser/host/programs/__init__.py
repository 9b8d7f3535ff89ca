# SPDX-License-Identifier: Apache-2.0
"""The host program: the Python that allocates and launches, written and checked."""
