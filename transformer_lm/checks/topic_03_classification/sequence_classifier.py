"""Check of topic 03: a classifier around a given pool."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from transformer_lm.checks.engine.contract import Inputs, PublicExercise, load_parameters
from transformer_lm.checks.topic_03_classification.tables import check_table
from transformer_lm.shapes import describe

__all__ = ["sequence_classifier"]

SHARES = (0.25, -0.125, 0.5)


class AddShare(nn.Module):
    """A substitute for a layer: adds to every position a fraction of how far the real ones are above -1."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.tensor(share))

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return the output, (b, n, hidden) like x itself."""
        above = (x + 1).relu()
        return x + self.share * _told(above, visible).sum(dim=1, keepdim=True)


def distance_from_minus_one(x: Tensor, visible: Tensor | None = None) -> Tensor:
    """Return the distance between all real tokens and -1 in each feature, (b, hidden), as a substitute for a pool."""
    return _told(x + 1, visible).norm(dim=1)


def _told(x: Tensor, visible: Tensor | None) -> Tensor:
    """Return x with 0 at padding, or all of x if `visible` is missing."""
    return x if visible is None else x * visible[:, :, None]


def _classifier_sizes(inputs: Inputs) -> tuple[int, int, int]:
    vocab_size, hidden = inputs["embed_weight"].shape
    return vocab_size, hidden, len(inputs["classify_bias"])


def _tried_classifier(inputs: Inputs, output: str) -> str:
    sizes = ", ".join(map(str, _classifier_sizes(inputs)))
    layers = f", {len(SHARES)} layers" if output == "logits_layered" else ""
    tokens = describe("tokens", inputs["tokens"], "b n")
    return f"SequenceClassifier({sizes}, pad={int(inputs['pad'])}, pool{layers}) with given weights on {tokens}"


def _build_classifier(answer: Callable, inputs: Inputs) -> nn.ModuleDict:
    """Return two classifiers with the same weights, one of which has layers between embedding and pool."""
    vocab_size, hidden, num_classes = _classifier_sizes(inputs)
    weights = {name.replace("_", "."): inputs[name] for name in ("embed_weight", "classify_weight", "classify_bias")}
    built = nn.ModuleDict()
    for output, options in (("logits", {}), ("logits_layered", {"layers": [AddShare(share) for share in SHARES]})):
        tried = _tried_classifier(inputs, output)
        pad = int(inputs["pad"])
        model = answer(vocab_size, hidden, num_classes, pad, distance_from_minus_one, **options)
        check_table(tried, model, "embed", vocab_size, hidden)
        built[output] = load_parameters(model, weights, tried)
    return built


def _call_classifier(subject: nn.ModuleDict, inputs: Inputs) -> Iterator[Tensor]:
    for output in SEQUENCE_CLASSIFIER.axes:
        yield subject[output](inputs["tokens"])


SEQUENCE_CLASSIFIER = PublicExercise(
    id="sequence-classifier",
    axes={"logits": "b num_classes", "logits_layered": "b num_classes"},
    trains=("logits", "logits_layered"),
    reads=("tokens",),
    build=_build_classifier,
    call=_call_classifier,
    tried=_tried_classifier,
)


def sequence_classifier(answer: Callable) -> None:
    """Check the student's `SequenceClassifier`, with a simple pool, without layers and with three simple ones."""
    SEQUENCE_CLASSIFIER.check(answer)
