# SPDX-License-Identifier: Apache-2.0
"""The demo: two transformer blocks through the fuser, beside eager torch."""
