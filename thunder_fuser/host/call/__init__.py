# SPDX-License-Identifier: Apache-2.0
"""A call: its arguments bound, its program found and run."""
