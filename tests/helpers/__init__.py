# SPDX-License-Identifier: Apache-2.0
"""What tests of several rooms share: definitions, samples, random draws, texts, processes."""

import os

# Threads that wait for work sleep, before torch loads OpenMP: several workers share the cores, and
# one that spins takes them from the others.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
