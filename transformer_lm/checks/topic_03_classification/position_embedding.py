"""Check of topic 03: learned position embeddings."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from transformer_lm.checks.engine.contract import Inputs, PublicExercise, load_parameters
from transformer_lm.checks.topic_03_classification.tables import check_table
from transformer_lm.shapes import describe


def _given_positions(inputs: Inputs, output: str) -> tuple[Tensor, Tensor | None]:
    """Return x, or x repeated up to max_len positions, with padding in all sequences but the first."""
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
    check_table(tried, module, "positions", *weight.shape)
    return load_parameters(module, {"positions.weight": weight}, tried)


def _call_positions(module: nn.Module, inputs: Inputs) -> Iterator[object]:
    """Yield the outputs, with 0 at padding, where values have no meaning."""
    x, visible = _given_positions(inputs, "output_full")  # before the first call, which might change its input
    assert visible is not None
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


def position_embedding(answer: Callable) -> None:
    """Check the student's `PositionEmbedding`: on fewer than max_len positions, and on max_len."""
    POSITION_EMBEDDING.check(answer)
