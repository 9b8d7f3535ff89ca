# SPDX-License-Identifier: Apache-2.0
"""A region -> a definition, or a function of torch."""
