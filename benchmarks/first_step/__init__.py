# SPDX-License-Identifier: Apache-2.0
"""Seconds until a model's first training step has ended, each in a process of its own.

measure     one model and contender -> its Measured (also a command)
run         every model -> figures, bounds, a table
"""
