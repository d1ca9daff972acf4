"""Checks of topic 03: pools that leave out padding, a classifier around them, and positions that it can tell apart."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from transformer_lm.checks.exercise import Inputs, PublicExercise, load_parameters
from transformer_lm.checks.report import CheckFailed, kind
from transformer_lm.shapes import describe

# --- mean-pool, max-pool, select-pool -----------------------------------------------------------


def _tried_pool(inputs: Inputs, how: str) -> str:
    x, visible = describe("x", inputs["x"], "b n hidden"), describe("visible", inputs["visible"], "b n")
    return f'pooled({x}, {visible}, "{how}")'


def _pool(how: str) -> PublicExercise:
    """Return the exercise about one of the pools: what the others do has no effect on it."""

    def call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
        yield answer(inputs["x"], inputs["visible"], how)

    return PublicExercise(
        id=f"{how}-pool",
        axes={how: "b hidden"},
        trains=(how,),
        reads=("x", "visible"),
        build=lambda answer, inputs: answer,
        call=call,
        tried=_tried_pool,
    )


MEAN_POOL, MAX_POOL, SELECT_POOL = (_pool(how) for how in ("mean", "max", "select"))

# --- sequence-classifier ------------------------------------------------------------------------


SHARES = (0.25, -0.125, 0.5)


class AddShare(nn.Module):
    """Stands for a layer: adds to every position a share of what the real ones have above -1."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.tensor(share))

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return (b, n, hidden) as x itself."""
        above = (x + 1).relu()
        return x + self.share * _told(above, visible).sum(dim=1, keepdim=True)


def distance_from_minus_one(x: Tensor, visible: Tensor | None = None) -> Tensor:
    """Stand for a pool: return (b, hidden), the distance between all real tokens and -1, in each feature."""
    return _told(x + 1, visible).norm(dim=1)


def _told(x: Tensor, visible: Tensor | None) -> Tensor:
    """Return x with 0 at padding, or all of it to whoever is not told where padding stands."""
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
    """Return two classifiers with the same weights, one of them with layers between embedding and pool."""
    vocab_size, hidden, num_classes = _classifier_sizes(inputs)
    weights = {name.replace("_", "."): inputs[name] for name in ("embed_weight", "classify_weight", "classify_bias")}
    built = nn.ModuleDict()
    for output, options in (("logits", {}), ("logits_layered", {"layers": [AddShare(share) for share in SHARES]})):
        tried = _tried_classifier(inputs, output)
        pad = int(inputs["pad"])
        model = answer(vocab_size, hidden, num_classes, pad, distance_from_minus_one, **options)
        _check_table(tried, model, "embed", vocab_size, hidden)
        built[output] = load_parameters(model, weights, tried)
    return built


def _check_table(tried: str, module: object, name: str, rows: int, hidden: int) -> None:
    """Raise CheckFailed if a module has no embedding of that name and size."""
    table = getattr(module, name, None)
    fits = isinstance(table, nn.Embedding) and table.weight.shape == (rows, hidden)
    if isinstance(module, nn.Module) and not fits:
        yours = repr(table) if isinstance(table, nn.Module) else kind(table)
        expected = f"self.{name} is nn.Embedding({rows}, {hidden})"
        hint = f"Make self.{name} a table of embeddings in __init__: how many there are, then how wide each is."
        raise CheckFailed(tried, f"self.{name} is {yours}", expected, hint)


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

# --- position-embedding -------------------------------------------------------------------------


def _given_positions(inputs: Inputs, output: str) -> tuple[Tensor, Tensor | None]:
    """Return x, or x again and again until it has max_len positions, with padding in all sequences but the first."""
    x, max_len = inputs["x"], len(inputs["positions_weight"])
    if output == "output":
        return x, None
    b, n, _ = x.shape
    filled = x.repeat(1, -(-max_len // n), 1)[:, :max_len].contiguous()
    lengths = max_len - torch.arange(b, device=x.device)
    return filled, torch.arange(max_len, device=x.device) < lengths[:, None]


def _tried_positions(inputs: Inputs, output: str) -> str:
    max_len, hidden = inputs["positions_weight"].shape
    x, visible = _given_positions(inputs, output)
    given = describe("x", x, "b n hidden") + ("" if visible is None else f", {describe('visible', visible, 'b n')}")
    return f"PositionEmbedding({max_len}, {hidden}) with given weights on {given}"


def _build_positions(answer: Callable, inputs: Inputs) -> nn.Module:
    weight, tried = inputs["positions_weight"], _tried_positions(inputs, "output")
    module = answer(*weight.shape)
    _check_table(tried, module, "positions", *weight.shape)
    return load_parameters(module, {"positions.weight": weight}, tried)


def _call_positions(module: nn.Module, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the outputs, with 0 at padding: whatever stands there means nothing."""
    x, visible = _given_positions(inputs, "output_full")  # before the first call, which might change its input
    yield module(inputs["x"])
    output = module(x, visible=visible)
    fits = isinstance(output, Tensor) and output.shape == x.shape
    yield torch.where(visible[:, :, None], output, 0) if fits else output


POSITION_EMBEDDING = PublicExercise(
    id="position-embedding",
    axes={"output": "b n hidden", "output_full": "b n hidden"},
    trains=("output", "output_full"),
    reads=("x",),
    build=_build_positions,
    call=_call_positions,
    tried=_tried_positions,
)

# --- the checks ---------------------------------------------------------------------------------


def mean_pool(answer: Callable) -> None:
    """Check the student's `pooled` with "mean"."""
    MEAN_POOL.check(answer)


def max_pool(answer: Callable) -> None:
    """Check the student's `pooled` with "max"."""
    MAX_POOL.check(answer)


def select_pool(answer: Callable) -> None:
    """Check the student's `pooled` with "select"."""
    SELECT_POOL.check(answer)


def sequence_classifier(answer: Callable) -> None:
    """Check the student's `SequenceClassifier`, with a simple pool, without layers and with three simple ones."""
    SEQUENCE_CLASSIFIER.check(answer)


def position_embedding(answer: Callable) -> None:
    """Check the student's `PositionEmbedding`: on fewer than max_len positions, and on as many."""
    POSITION_EMBEDDING.check(answer)
