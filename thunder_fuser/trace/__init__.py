# SPDX-License-Identifier: Apache-2.0
"""A joint trace of Thunder -> the same trace, prepared: ops in regions, and what is recomputed."""
