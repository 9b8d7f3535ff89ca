# SPDX-License-Identifier: Apache-2.0
"""What every room uses: threads, warnings, progress, logs, times, dumps, failures."""
