# SPDX-License-Identifier: Apache-2.0
"""Communication between the ranks of a group: pipelines behind matrix products, and their costs."""
