# SPDX-License-Identifier: Apache-2.0
"""Compile time by depth: a residual model of N layers, its first training step.

layers      the model      measure   one N in a fresh process -> its Measured (also a command)
run         every N -> figures, bounds, tables
"""
