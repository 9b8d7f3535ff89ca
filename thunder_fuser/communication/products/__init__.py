# SPDX-License-Identifier: Apache-2.0
"""Pipelines behind matrix products, their costs, and the choice between them."""
