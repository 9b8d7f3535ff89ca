# SPDX-License-Identifier: Apache-2.0
"""Schedules that users write, as text or as functions, and the rules that they keep."""
