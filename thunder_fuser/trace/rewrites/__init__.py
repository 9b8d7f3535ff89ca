# SPDX-License-Identifier: Apache-2.0
"""Passes over a trace before its regions are claimed."""
