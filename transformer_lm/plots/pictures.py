"""Figures in a notebook that everybody can read: an image with a text for those who cannot see it."""

import base64
import html
import io

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.figure import Figure


def show(figure: Figure, alt: str) -> None:
    """Display a figure with `alt`, what it shows in words, and close it."""
    display(picture(figure, alt), raw=True)


def picture(figure: Figure, alt: str) -> dict[str, str]:
    """Return a figure with its alt text as Jupyter takes what it displays, by kind, and close it.

    Jupyter drops the alt text of a plain image, so the page gets HTML; what cannot show HTML gets the image.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    image = base64.b64encode(buffer.getvalue()).decode()
    page = f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{image}">'
    return {"text/html": page, "image/png": image, "text/plain": f"Figure: {alt}"}
