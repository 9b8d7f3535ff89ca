# SPDX-License-Identifier: Apache-2.0
"""What to keep for the backward and what to compute again; see docs/rematerialization.md."""
