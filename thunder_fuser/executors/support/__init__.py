# SPDX-License-Identifier: Apache-2.0
"""Which operations a region may hold, and how each is recorded: the table."""
