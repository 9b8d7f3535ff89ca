# SPDX-License-Identifier: Apache-2.0
"""What a program does between its kernels: nodes, their order, their text."""
