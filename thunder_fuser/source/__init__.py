# SPDX-License-Identifier: Apache-2.0
"""The lines of the user's program, and the options of thunder.jit."""
