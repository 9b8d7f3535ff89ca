# SPDX-License-Identifier: Apache-2.0
"""Thunder's internals: what is replaced there, by one door (door.py), and what torch lacks for it.

Nothing of Thunder is imported here: torch_names.py has to come first.
"""
