"""Check of topic 03: a block of the encoder, around an attention that it is given."""

from collections.abc import Callable, Iterator
from dataclasses import replace

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
    dropout = {
        "output": ")",
        "undropped": ", dropout=1) in eval mode",
        "dropped": ", dropout=1) in train mode",
        "half": ", dropout=0.5) in train mode",
    }[output]
    return (
        f"TransformerEncoderBlock({hidden}, attention{dropout} with frozen weights "
        f"on {described_batch(inputs, padded=True)}"
    )


def _block(answer: Callable, inputs: Inputs, output: str, **options: float) -> nn.Module:
    """Return a block with the weights of the inputs, around what stands for attention."""
    hidden, tried = inputs["x"].shape[-1], _tried(inputs, output)
    attention = load_parameters(ShareOfTheVisible(hidden), _weights(inputs, "attention"), tried)
    block = answer(hidden, attention, **options)
    if isinstance(block, nn.Module):
        for name in NORMS:
            _check_norm(tried, name, block, hidden)
        _check_dropout(tried, block, options.get("dropout", 0))
    return load_parameters(block, _weights(inputs, *NORMS, "up", "down"), tried)


def _build(answer: Callable, inputs: Inputs) -> nn.ModuleDict:
    """Return two blocks with the same weights, one without dropout and one with as much as there can be."""
    without = _block(answer, inputs, "output")  # which is the default
    return nn.ModuleDict({"output": without, "dropped": _block(answer, inputs, "dropped", dropout=ALMOST_ALL)})


def _weights(inputs: Inputs, *layers: str) -> Inputs:
    return {f"{layer}.{part}": inputs[f"{layer}_{part}"] for layer in layers for part in ("weight", "bias")}


def _check_norm(tried: str, name: str, block: nn.Module, hidden: int) -> None:
    """Raise CheckFailed unless the block has a LayerNorm of that name over the features of a position."""
    norm = getattr(block, name, None)
    hint = f"Make self.{name} a layer norm over the features of a position: the check loads its weights by name."
    if isinstance(norm, nn.LayerNorm) and norm.normalized_shape == (hidden,) and norm.bias is not None:
        if norm.eps == 1e-5:
            return
        hint = f"Leave eps of self.{name} as nn.LayerNorm has it, 1e-5: another one gives other numbers."
    yours = f"self.{name} is {repr(norm) if isinstance(norm, nn.Module) else kind(norm)}"
    if not hasattr(block, name):
        yours = f"there is no self.{name}"
    raise CheckFailed(tried, yours, f"self.{name} is nn.LayerNorm({hidden})", hint)


def _check_dropout(tried: str, block: nn.Module, share: float) -> None:
    """Raise CheckFailed if the block drops another share than it was told: what is random says little by itself."""
    others = [module.p for module in block.modules() if isinstance(module, nn.Dropout) and module.p != share]
    if others:
        hint = "The share that is dropped is fixed in your code, or has another default than 0: the block is told it."
        raise CheckFailed(tried, f"nn.Dropout({others[0]:g})", f"nn.Dropout({share:g})", hint)


def _call(blocks: nn.ModuleDict, inputs: Inputs) -> Iterator[Tensor]:
    copy, real = inputs["x"].clone(), inputs["visible"].clone()

    def called(block: nn.Module, output: str, x: Tensor, visible: Tensor) -> Tensor:
        return at_real_tokens(block(x, visible=visible), real, _tried(inputs, output))

    block, mode = blocks["dropped"], blocks.training
    # What a block changes in place must not reach the next call: only the first one gets the inputs themselves.
    yield called(blocks["output"], "output", inputs["x"], inputs["visible"])
    yield called(block.eval(), "undropped", copy.clone(), real.clone())
    yield called(block.train(), "dropped", copy.clone(), real.clone())
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


def _build_half(answer: Callable, inputs: Inputs) -> nn.Module:
    return _block(answer, inputs, "half", dropout=0.5)


def _call_half(block: nn.Module, inputs: Inputs) -> Iterator[Tensor]:
    yield block.train()(inputs["x"], visible=inputs["visible"])


# Its output is random: what was dropped can be told, by whoever knows what the parts find.
ENCODER_DROPOUT = replace(
    ENCODER_BLOCK,
    id="encoder-dropout",
    axes={"half": "b n hidden"},
    trains=(),
    build=_build_half,
    call=_call_half,
)


def encoder_block_output(answer: Callable) -> None:
    """Check what the student's `TransformerEncoderBlock` computes without dropout."""
    ENCODER_BLOCK.only("output", "without dropout it is").check(answer)


def encoder_block(answer: Callable) -> None:
    """Check all of the student's `TransformerEncoderBlock`, with and without dropout, around a simple attention."""
    ENCODER_BLOCK.check(answer)
