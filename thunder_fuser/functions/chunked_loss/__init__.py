# SPDX-License-Identifier: Apache-2.0
"""The loss of a language model without its logits: recognise.py finds it, loop.py computes it."""
