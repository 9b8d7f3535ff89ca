# SPDX-License-Identifier: Apache-2.0
"""The names by which Thunder and torch know the fuser: a recipe, and a backend of torch.compile."""
