# SPDX-License-Identifier: Apache-2.0
"""The lines of the user's program, the options of thunder.jit, and warnings that name a line."""
