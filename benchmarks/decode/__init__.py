# SPDX-License-Identifier: Apache-2.0
"""Decoding: what a token costs, beside the time in which memory delivers the weights.

products   matrix products of few rows, alone    tokens   a whole model with a static cache
"""
