# SPDX-License-Identifier: Apache-2.0
"""thunder_fuser.jit: a repeated call with less Python around it."""
