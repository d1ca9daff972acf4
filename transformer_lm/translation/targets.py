"""Training targets for translation: decoder inputs, labels and the loss.

Axes: b batch, m positions of the source, n of the target, v vocabulary.
"""

from torch import Tensor
from torch.nn import functional as F

from transformer_lm.answers import sealed_while_open
from transformer_lm.shapes import match_axes


@sealed_while_open("shift-target")
def shift_target(targets: Tensor, start: int, end: int, pad: int) -> tuple[Tensor, Tensor]:
    """Return the decoder's inputs and, for each position, the label: the token that comes next.

    Shapes:
        targets  (b, n)      the words of each sentence, then padding
        returns  (b, n + 1)  START, the words, padding; and (b, n + 1) the words, END, padding
    """
    match_axes(targets=(targets, "b n"))
    lengths = (targets != pad).sum(dim=1, keepdim=True)  # (b, 1)
    inputs = F.pad(targets, (1, 0), value=start)
    labels = F.pad(targets, (0, 1), value=pad).scatter(1, lengths, end)
    return inputs, labels


@sealed_while_open("loss")
def translation_loss(logits: Tensor, labels: Tensor, pad: int, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy -ln p(label), averaged over the labels that are not padding.

    With `label_smoothing`, that fraction of each label is spread evenly over the vocabulary (Szegedy et al., Rethinking
    the Inception Architecture, 2015, arXiv:1512.00567).

    Shapes:
        logits   (b, n, v)
        labels   (b, n)
        returns  ()
    """
    match_axes(logits=(logits, "b n v"), labels=(labels, "b n"))
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=pad, label_smoothing=label_smoothing)
