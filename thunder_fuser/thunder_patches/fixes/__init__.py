# SPDX-License-Identifier: Apache-2.0
"""What gives wrong results in Thunder, replaced; each file says what, why, and what instead."""
