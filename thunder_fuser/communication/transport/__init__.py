# SPDX-License-Identifier: Apache-2.0
"""How ranks move bytes: memory that they share, collectives, and who waits for whom."""
