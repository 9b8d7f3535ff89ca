# SPDX-License-Identifier: Apache-2.0
"""What each device of a mesh holds and computes, and whether the ranks agree."""
