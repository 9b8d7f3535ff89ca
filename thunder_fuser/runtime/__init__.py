# SPDX-License-Identifier: Apache-2.0
"""Kernel source -> a function: on a GPU, on the CPU, or in the emulator."""
