# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings: `make docs` builds the pages of this folder and the API reference."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

from thunder_fuser import __version__

DOCS = Path(__file__).parent
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)\)")

project = "thunder_fuser"
author = copyright = "The thunder_fuser authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"{project} {__version__}"

myst_heading_anchors = 3  # `page.md#a-title` leads to a title

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
default_role = "literal"  # docstrings write `names` in single backticks


def setup(app: Sphinx) -> None:
    app.connect("source-read", _unlink_folders)


def _unlink_folders(app: Sphinx, page: str, source: list[str]) -> None:
    """Shows links to folders as text. A site can offer a file of the repository, not a folder."""
    here = (DOCS / page).parent
    source[0] = LINK.sub(lambda m: m[1] if (here / m[2]).is_dir() else m[0], source[0])
