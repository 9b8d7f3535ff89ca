# SPDX-License-Identifier: Apache-2.0
"""What every room uses: threads, progress, logs, times of stages, dumps, records of failures."""
