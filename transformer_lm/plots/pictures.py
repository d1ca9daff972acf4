"""Accessible figures in a notebook: each image has an alt text."""

import base64
import html
import io

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.figure import Figure


def show(figure: Figure, alt: str) -> None:
    """Display a figure with the alt text `alt`, which describes it in words, and close it."""
    display(picture(figure, alt), raw=True)


def picture(figure: Figure, alt: str) -> dict[str, str]:
    """Return a figure with its alt text as Jupyter's MIME bundle, and close it.

    Jupyter drops the alt text of a plain image, so the notebook gets HTML; a viewer that cannot show HTML gets the
    image.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    image = base64.b64encode(buffer.getvalue()).decode()
    page = f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{image}">'
    return {"text/html": page, "image/png": image, "text/plain": f"Figure: {alt}"}
