# SPDX-License-Identifier: Apache-2.0
"""The door to Thunder: which symbols are taken, which regions, and what a trace then calls."""
