# SPDX-License-Identifier: Apache-2.0
"""How the segmenter plans: what real graphs come to, how near to the best, and in what time.

graphs      torch functions         random_graphs   small fusions, beside the best plan
families    fusions of any length   exhaustive      the least cost that any plan has
run         all of it: tables, bounds
"""
