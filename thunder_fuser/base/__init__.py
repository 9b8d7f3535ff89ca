# SPDX-License-Identifier: Apache-2.0
"""What every room uses: threads, warnings, logs, times, dumps, failures."""
