# SPDX-License-Identifier: Apache-2.0
"""In which order the results of regions and convolutions lie in memory."""
