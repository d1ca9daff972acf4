"""Check of topic 03: a block of the encoder, around an attention that it is given."""

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from transformer_lm.checks.exercise import Inputs, PublicExercise, load_parameters
from transformer_lm.checks.multi_head_attention import ALMOST_ALL
from transformer_lm.checks.padded_attention import at_real_tokens, described_batch
from transformer_lm.checks.report import CheckFailed, kind

NORMS = ("attention_norm", "mlp_norm")


class ShareOfTheVisible(nn.Module):
    """Stands for attention: a quarter of the sum of all visible positions, less each one, through a linear layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.attention = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return what each position reads, (b, n, hidden) as x itself; with no visible, all positions are."""
        seen = x if visible is None else x * visible[..., None]
        return self.attention(seen.sum(dim=1, keepdim=True) / 4 - x)


def _tried(inputs: Inputs, output: str) -> str:
    hidden = inputs["x"].shape[-1]
    dropout = {"output": "", "undropped": ", dropout=1) in eval mode", "dropped": ", dropout=1) in train mode"}[output]
    return (
        f"TransformerEncoderBlock({hidden}, attention{dropout or ')'} with frozen weights "
        f"on {described_batch(inputs, padded=True)}"
    )


def _build(answer: Callable, inputs: Inputs) -> nn.ModuleDict:
    """Return two blocks with the same weights, one without dropout and one with as much as there can be."""
    hidden = inputs["x"].shape[-1]
    blocks = {}
    for output, options in {"output": {}, "dropped": {"dropout": ALMOST_ALL}}.items():  # without is the default
        tried = _tried(inputs, output)
        attention = load_parameters(ShareOfTheVisible(hidden), _weights(inputs, "attention"), tried)
        block = answer(hidden, attention, **options)
        if isinstance(block, nn.Module):
            for name in NORMS:
                _check_norm(tried, name, getattr(block, name, None), hidden)
            _check_dropout(tried, block, options.get("dropout", 0))
        blocks[output] = load_parameters(block, _weights(inputs, *NORMS, "up", "down"), tried)
    return nn.ModuleDict(blocks)


def _weights(inputs: Inputs, *layers: str) -> Inputs:
    return {f"{layer}.{part}": inputs[f"{layer}_{part}"] for layer in layers for part in ("weight", "bias")}


def _check_norm(tried: str, name: str, norm: object, hidden: int) -> None:
    """Raise CheckFailed unless a layer is a LayerNorm over the features of a position."""
    if isinstance(norm, nn.LayerNorm) and norm.normalized_shape == (hidden,) and norm.bias is not None:
        return
    yours = repr(norm) if isinstance(norm, nn.Module) else kind(norm)
    hint = f"Make self.{name} a layer norm over the features of a position: the check loads its weights by name."
    raise CheckFailed(tried, f"self.{name} is {yours}", f"self.{name} is nn.LayerNorm({hidden})", hint)


def _check_dropout(tried: str, block: nn.Module, share: float) -> None:
    """Raise CheckFailed if the block drops another share than it was told: what is random says little by itself."""
    others = [module.p for module in block.modules() if isinstance(module, nn.Dropout) and module.p != share]
    if others:
        hint = "The share that is dropped is fixed in your code, or has another default than 0: the block is told it."
        raise CheckFailed(tried, f"nn.Dropout({others[0]:g})", f"nn.Dropout({share:g})", hint)


def _call(blocks: nn.ModuleDict, inputs: Inputs) -> Iterator[Tensor]:
    x, visible = inputs["x"], inputs["visible"]

    def called(block: nn.Module, output: str) -> Tensor:
        return at_real_tokens(block(x, visible=visible), visible, _tried(inputs, output))

    block, mode = blocks["dropped"], blocks.training
    yield called(blocks["output"], "output")
    yield called(block.eval(), "undropped")
    yield called(block.train(), "dropped")
    block.train(mode)


ENCODER_BLOCK = PublicExercise(
    id="encoder-block",
    axes=dict.fromkeys(("output", "undropped", "dropped"), "b n hidden"),
    trains=("output",),
    reads=("x", "visible"),
    build=_build,
    call=_call,
    tried=_tried,
)


def encoder_block_output(answer: Callable) -> None:
    """Check what the student's `TransformerEncoderBlock` computes without dropout."""
    ENCODER_BLOCK.only("output", "without dropout it is").check(answer)


def encoder_block(answer: Callable) -> None:
    """Check all of the student's `TransformerEncoderBlock`, with and without dropout, around a simple attention."""
    ENCODER_BLOCK.check(answer)
