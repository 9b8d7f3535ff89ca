# SPDX-License-Identifier: Apache-2.0
"""The fusion IR: what a fusion is, how it is built, printed, read back and checked."""
