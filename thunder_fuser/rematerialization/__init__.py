# SPDX-License-Identifier: Apache-2.0
"""What to keep for the backward and what to recompute; see docs/rematerialization.md."""
