# SPDX-License-Identifier: Apache-2.0
"""nvFuser's language: the calls that record a definition, its text, and its documentation."""
