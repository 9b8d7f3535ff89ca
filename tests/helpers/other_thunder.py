# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest (-p helpers.other_thunder): Thunder says that it is of a later version."""

from __future__ import annotations

import thunder.__about__ as about

about.__version__ = "99.0"
