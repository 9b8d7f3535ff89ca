# SPDX-License-Identifier: Apache-2.0
"""What tests of several rooms share: definitions, samples, random draws, texts, processes."""
