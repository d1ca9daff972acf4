"""An interactive attention viewer for notebooks: choose a head, point at a character, compare two heads.

It is one piece of HTML: a picture of all heads, the weights, and the script `viewer.js`, which replaces the picture
by the viewer. It needs no kernel and no network. Where scripts do not run (an untrusted notebook, a code-hosting
site), the picture stays.

Axes: b batch, h heads, i of the query, j of the key.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from IPython.display import display
from matplotlib import colormaps
from torch import Tensor

from transformer_lm.plots.colours import COLOURS
from transformer_lm.plots.heatmaps import layer_name, plot_layers, with_glyphs
from transformer_lm.plots.pictures import picture

SCRIPT = Path(__file__).with_suffix(".js")


def view_attention(
    recording: Mapping[str, Tensor],
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    visible: Tensor | None = None,
    row: int = 0,
) -> None:
    """Display the viewer of one text's attention weights; for its arguments see `viewer`."""
    display(viewer(recording, queries, keys, visible, row), raw=True)


def viewer(
    recording: Mapping[str, Tensor],
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    visible: Tensor | None = None,
    row: int = 0,
) -> dict[str, str]:
    """Return the viewer as Jupyter's MIME bundle: HTML, and a picture for viewers that cannot show HTML.

    The weights are kept in steps of 1/255, which is enough for whole percents.

    Shapes:
        recording  name of a layer to (b, h, i, j), rows sum to 1, as `record_attention` returns it
        visible    (i, j)  True where query i may attend to key j, in every head
        queries    i labels, one for each character
        keys       j labels; default: the queries' labels, of the same text
        row        which of the b texts is shown

    Raises ValueError if the weights are invalid, anything else does not fit them, or a hidden key has weight.
    """
    figure = plot_layers(recording, queries, keys, visible, row)  # refuses what does not fit
    one_text = keys is None
    keys = queries if keys is None else keys
    weights = torch.stack([layer[row] for layer in recording.values()])  # (layers, h, i, j)
    visible = torch.ones(len(queries), len(keys), dtype=torch.bool) if visible is None else visible
    data = {
        "layers": [layer_name(name) for name in recording],
        "heads": weights.shape[1],
        "queries": [with_glyphs(label) for label in queries],
        "keys": [with_glyphs(label) for label in keys],
        "oneText": one_text,
        "colours": colormaps[COLOURS](np.arange(256), bytes=True).tobytes().hex(),
        "weights": _packed(weights, visible),
    }
    alt = (
        f"A small map of attention weights for each head (layers: {len(recording)}, heads in each: {data['heads']}, "
        f"queries: {len(queries)}, keys: {len(keys)}): a row for each query, a column for each key, dark for 0, "
        "bright for 1."
    )
    bundle = picture(figure, alt)
    bundle["text/html"] = (
        f'<div class="attention-viewer">{bundle["text/html"]}'
        f'<script type="application/json">{_inside_script(data)}</script>'
        f"<script>{SCRIPT.read_text(encoding='utf-8')}</script></div>"
    )
    return bundle


def _packed(weights: Tensor, visible: Tensor) -> str:
    """Return `visible`, a byte for each entry, and the visible weights of all heads, compressed, as text.

    Shapes:
        weights  (layers, h, i, j)
        visible  (i, j)
    """
    shares = weights[..., visible.to(weights.device)].detach().cpu().double()  # (layers, h, visible entries)
    steps = (255 * shares.clamp(max=1)).round().byte()  # a coarse dtype may round a weight to a little more than 1
    return base64.b64encode(zlib.compress(visible.cpu().numpy().tobytes() + steps.numpy().tobytes(), 9)).decode()


def _inside_script(data: dict) -> str:
    """Return data as JSON that cannot end its script element, whatever the labels are."""
    return json.dumps(data).replace("<", "\\u003c")
