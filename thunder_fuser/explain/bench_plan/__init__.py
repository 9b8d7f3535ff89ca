# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder_fuser bench plan`: plans of real graphs, how good plans are, their time.

No kernel is compiled and no device is needed: a plan follows from sizes and a Target.
"""
