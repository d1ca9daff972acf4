"""How Sphinx builds the course site; `docs/build_site.py` runs it."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the extensions below

project = "Transformers, built by you"
copyright = "the authors of the course, MIT licence"
html_title = "Transformers"
root_doc = "index"
exclude_patterns = ["README.md"]  # parts of it are included in pages

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "mathml", "shape_tables"]

# Lessons come with their outputs; nbval proves these fresh.
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # they would come from other hosts; a progress bar is not worth that
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

templates_path = [str(HERE / "templates")]
autosummary_generate = True
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Classes of other packages, classes behind the checks and variables for types have no page here.
nitpick_ignore_regex = [("py:.*", r"(?!transformer_lm(?!\.checks\.engine)).*"), ("py:class", r".*\.Marked")]
default_role = "code"  # docstrings write `names` as Markdown does

html_context = {"default_mode": "auto"}  # light or dark, as the reader's system has it
html_theme = "pydata_sphinx_theme"
html_static_path = ["static"]
html_css_files = ["course.css"]
html_show_sourcelink = False
html_copy_source = False
html_use_index = html_domain_indices = False  # the search finds names
html_theme_options = {
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
