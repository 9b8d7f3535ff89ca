# SPDX-License-Identifier: Apache-2.0
"""Kernel text -> something that runs: on a GPU, on the CPU, or in the emulator."""
