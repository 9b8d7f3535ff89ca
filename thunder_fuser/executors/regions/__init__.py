# SPDX-License-Identifier: Apache-2.0
"""What a region is, where it ends, and what it may write."""
