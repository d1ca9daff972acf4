"""Write the README's figure: the one that a cell of lesson 01 has drawn. Run by `make lessons`."""

import base64
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
LESSON = ROOT / "notebooks" / "01_self_attention.ipynb"
CELL = "hand-look"
FIGURE = ROOT / "docs" / "attention_by_hand.png"


def figure_bytes() -> bytes:
    """Return the figure as it is in the committed lesson."""
    (cell,) = (cell for cell in nbformat.read(LESSON, as_version=4).cells if cell.id == CELL)
    (image,) = (output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {}))
    return base64.b64decode(image)


if __name__ == "__main__":
    FIGURE.write_bytes(figure_bytes())
