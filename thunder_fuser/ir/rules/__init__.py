# SPDX-License-Identifier: Apache-2.0
"""What an op's result is: its sizes, type, strides, shards; a definition as a checked fusion."""
