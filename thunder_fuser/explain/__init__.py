# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> what was fused, what was not and why, its kernels, and how exact it is."""
