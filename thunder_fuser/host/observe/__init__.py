# SPDX-License-Identifier: Apache-2.0
"""What ran: kernel times, ranges of a profiler, scripts."""
