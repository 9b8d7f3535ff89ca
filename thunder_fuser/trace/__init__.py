# SPDX-License-Identifier: Apache-2.0
"""A joint trace of Thunder -> the same trace, prepared: each fusible op has its region, and the
backward its recomputed values."""
