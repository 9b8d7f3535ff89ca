# SPDX-License-Identifier: Apache-2.0
"""Writes in place of a program that is differentiated -> values."""
