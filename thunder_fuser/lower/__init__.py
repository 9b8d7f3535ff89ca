# SPDX-License-Identifier: Apache-2.0
"""ScheduledFusion -> Kernel: loops, indices, predicates, arrays and barriers."""
