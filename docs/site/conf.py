"""Sphinx's configuration for the tree that stage.py writes."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent.parent)]

import fuser  # noqa: E402

project = "fuser"
author = "The fuser developers"
copyright = author
version = release = fuser.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "docstrings"]
root_doc = "index"
highlight_language = "text"
default_role = "literal"
smartquotes = False  # "auto" is a string

myst_heading_anchors = 5
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autoclass_content = "both"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries = False

html_theme = "furo"
html_title = f"fuser {release}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
