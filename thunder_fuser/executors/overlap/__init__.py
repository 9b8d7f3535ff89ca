# SPDX-License-Identifier: Apache-2.0
"""A matrix product and its collective -> one call."""
