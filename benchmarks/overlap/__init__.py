# SPDX-License-Identifier: Apache-2.0
"""Matrix products with communication, on several devices. See docs/benchmarks.md.

run      the command: starts a process for each rank, prints its tables
rank     one process: checks and measures points
ways     a point -> the calls that are compared
points   what is measured, and the bounds
model    what the cost model predicts, beside what was measured
"""
