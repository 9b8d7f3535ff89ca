# SPDX-License-Identifier: Apache-2.0
"""Autotuning: measures other schedules of a kernel on the device, and keeps the fastest."""
