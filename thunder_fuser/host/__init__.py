# SPDX-License-Identifier: Apache-2.0
"""What runs on the host: a program of allocations and launches, printed as the Python it is."""
