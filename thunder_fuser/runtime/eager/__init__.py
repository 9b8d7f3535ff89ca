# SPDX-License-Identifier: Apache-2.0
"""What a fusion means: its ops one by one in eager torch."""
