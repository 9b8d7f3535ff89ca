# SPDX-License-Identifier: Apache-2.0
"""The benchmark of compile time by depth: a residual model of N layers, its first training step.

layers      the model          measure   one N in a fresh process -> its Figures (also a command)
run         every N -> figures, bounds, a table, a JSON
"""
