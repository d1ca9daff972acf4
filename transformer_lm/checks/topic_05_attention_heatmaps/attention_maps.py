"""Check of topic 05: the attention weights of every block, each computed on the output of the block before."""

from collections import OrderedDict
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, require_own
from transformer_lm.checks.engine.failure import CheckFailed, kind
from transformer_lm.modeling_attention import CausalSelfAttention
from transformer_lm.modeling_transformer import TransformerDecoderBlock
from transformer_lm.shapes import describe

MAX_LEN = 64  # longer than any input of the check
LIST = hint("not-a-list", "attention-maps")
SHAPES = hint("several-shapes", "attention-maps")


def _tried(inputs: Inputs, output: str) -> str:
    blocks = f"{len(inputs['attention_q_weight'])} blocks of {int(inputs['num_heads'])} heads with given weights"
    return f"attention_maps({blocks}, {describe('x', inputs['x'], 'b n hidden')})"


def _block(inputs: Inputs, number: int) -> nn.Module:
    """Return a decoder block with its part of the weights."""
    _, width, hidden = inputs["mlp_up_weight"].shape
    attention = CausalSelfAttention(hidden, int(inputs["num_heads"]), MAX_LEN)
    mlp = nn.Sequential(OrderedDict(up=nn.Linear(hidden, width), relu=nn.ReLU(), down=nn.Linear(width, hidden)))
    block = TransformerDecoderBlock(hidden, attention, mlp).to(inputs["x"].device)
    block.load_state_dict({name: inputs[name.replace(".", "_")][number] for name in block.state_dict()})
    return block


def _build(answer: Callable, inputs: Inputs) -> Callable:
    """Return the student's function with the blocks to inspect, in a new list for each call."""
    blocks = [_block(inputs, number) for number in range(len(inputs["mlp_up_weight"]))]
    return lambda x: answer(list(blocks), x)


def _call(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield all maps in one tensor, sequences first, then blocks."""
    maps, tried = answer(inputs["x"].detach()), _tried(inputs, "maps")
    if not isinstance(maps, tuple | list) or not maps or not all(isinstance(each, Tensor) for each in maps):
        of = sorted({type(each).__name__ for each in maps}) if isinstance(maps, tuple | list) else []
        yours = f"the return value is {kind(maps)}" + (f", of type {' and '.join(of)}" if of else "")
        raise CheckFailed(tried, yours, "a list of tensors", LIST)
    if len({each.shape for each in maps}) > 1 or maps[0].dim() < 2:
        yours = f"tensors of shapes {', '.join(str(tuple(each.shape)) for each in maps)}"
        raise CheckFailed(tried, yours, "tensors of one shape, (b, h, i, j)", SHAPES)
    yield torch.stack(list(maps), dim=1)


ATTENTION_MAPS = PublicExercise(
    id="attention-maps",
    axes={"maps": "b block h i j"},
    trains=(),
    reads=("x",),
    build=_build,
    call=_call,
    tried=_tried,
    causal=("maps",),
)


def attention_maps(answer: Callable) -> None:
    """Check the student's `attention_maps`, on decoder blocks of the package with given weights."""
    require_own(answer)
    ATTENTION_MAPS.check(answer)
