"""A Sphinx extension: formulas as MathML, which browsers show by themselves, without a script."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger
from sphinx.writers.html5 import HTML5Translator


def inline_formula(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a line."""
    translator.body.append(_mathml(node, "inline"))
    raise nodes.SkipNode


def formula(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on a separate line; one that is too wide for the page can be scrolled."""
    translator.body.append(f'<div class="formula">{_mathml(node, "block")}</div>\n')
    raise nodes.SkipNode


def _mathml(node: nodes.Element, display: str) -> str:
    """Return a formula as MathML; an unknown command gives a warning, which fails the build."""
    mathml = convert(node.astext(), display=display)
    if "\\" in mathml:
        getLogger(__name__).warning("a formula must contain known commands only, got %s.", node.astext(), location=node)
    return mathml


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer under the name `mathml`."""
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
