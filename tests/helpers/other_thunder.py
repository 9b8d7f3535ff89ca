# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest (-p helpers.other_thunder): Thunder says that it is of a later version."""

from __future__ import annotations

import thunder_fuser  # noqa: F401 from torch 2.13 on Thunder does not import without it

import thunder.__about__ as about  # isort: skip

about.__version__ = "99.0"
