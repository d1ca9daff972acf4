"""Check of topic 03: an encoder block around a given attention."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, load_parameters, on_device
from transformer_lm.checks.engine.failure import CheckFailed, described_errors, kind
from transformer_lm.checks.engine.halved import CLOSE, EXPECTED, dropped_shares, is_halved
from transformer_lm.checks.topic_02_multi_head_attention.multi_head_attention import ALMOST_ALL
from transformer_lm.checks.topic_03_classification.padded_layers import at_real_tokens, described_batch

__all__ = ["encoder_block", "encoder_block_output"]

NORMS = ("attention_norm", "mlp_norm")


class ShareOfTheVisible(nn.Module):
    """A substitute for attention: a quarter of the visible positions' sum minus each one, then a linear layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.attention = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return the output for each position, (b, n, hidden) like x; without `visible`, all positions are visible."""
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
        f"TransformerEncoderBlock({hidden}, attention{dropout} with given weights "
        f"on {described_batch(inputs, padded=True)}"
    )


def _block(answer: Callable, inputs: Inputs, output: str, **options: float) -> nn.Module:
    """Return a block with the weights of the inputs, around the substitute for attention."""
    hidden, tried = inputs["x"].shape[-1], _tried(inputs, output)
    attention = load_parameters(ShareOfTheVisible(hidden), _weights(inputs, "attention"), tried)
    block = answer(hidden, attention, **options)
    if isinstance(block, nn.Module):
        for name in NORMS:
            _check_norm(tried, name, block, hidden)
        _check_dropout(tried, block, options.get("dropout", 0))
    return load_parameters(block, _weights(inputs, *NORMS, "up", "down"), tried)


def _build(answer: Callable, inputs: Inputs) -> nn.ModuleDict:
    """Return two blocks with the same weights, one without dropout and one with the highest rate."""
    without = _block(answer, inputs, "output")  # the default
    return nn.ModuleDict({"output": without, "dropped": _block(answer, inputs, "dropped", dropout=ALMOST_ALL)})


def _weights(inputs: Inputs, *layers: str) -> Inputs:
    return {f"{layer}.{part}": inputs[f"{layer}_{part}"] for layer in layers for part in ("weight", "bias")}


def _check_norm(tried: str, name: str, block: nn.Module, hidden: int) -> None:
    """Raise CheckFailed unless the block has a LayerNorm of that name over the features of a position."""
    norm = getattr(block, name, None)
    known = hint("not-a-layer-norm", "encoder-block", name=name)
    if isinstance(norm, nn.LayerNorm) and norm.normalized_shape == (hidden,) and norm.bias is not None:
        if norm.eps == 1e-5:
            return
        known = hint("other-eps", "encoder-block", name=name)
    yours = f"self.{name} is {repr(norm) if isinstance(norm, nn.Module) else kind(norm)}"
    if not hasattr(block, name):
        yours = f"self.{name} is missing"
    raise CheckFailed(tried, yours, f"self.{name} is nn.LayerNorm({hidden})", known)


def _check_dropout(tried: str, block: nn.Module, share: float) -> None:
    """Raise CheckFailed if the block does not have the given dropout rate: random output alone says little."""
    others = [module.p for module in block.modules() if isinstance(module, nn.Dropout) and module.p != share]
    if others:
        known = hint("fixed-dropout", "encoder-block")
        raise CheckFailed(tried, f"nn.Dropout({others[0]:g})", f"nn.Dropout({share:g})", known)


def _call(blocks: nn.ModuleDict, inputs: Inputs) -> Iterator[object]:
    copy, real = inputs["x"].clone(), inputs["visible"].clone()

    def called(block: nn.Module, output: str, x: Tensor, visible: Tensor) -> object:
        return at_real_tokens(block(x, visible=visible), real, _tried(inputs, output))

    block, mode = blocks["dropped"], blocks.training
    # Changes in place must not affect the next call, so only the first call gets the inputs themselves.
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


# Its output is random: `check_halves` finds out what was dropped.
ENCODER_DROPOUT = replace(
    ENCODER_BLOCK,
    id="encoder-dropout",
    axes={"half": "b n hidden"},
    trains=(),
    build=_build_half,
    call=_call_half,
)


HALVED = hint("not-halved", "encoder-block")
TOGETHER = hint("dropped-together", "encoder-block")


def check_halves(ask: Callable[[Inputs, str], Tensor], generator: torch.Generator) -> None:
    """Raise CheckFailed unless some part adds something, half of each part is dropped, and nothing else is added.

    `ask` gives a block's "output" without dropout, or "half" with dropout=0.5 in train mode.
    """
    added = []
    for finder, silent in (("attention", ("down",)), ("the feed-forward part", ("attention",))):
        inputs = _inputs_for_dropout(generator, *silent)
        whole = ask(inputs, "output") - inputs["x"]
        added.append(bool(whole.abs().max() > CLOSE))
        if not added[-1]:
            continue  # wrong, but there is nothing to drop
        tried = f"TransformerEncoderBlock(8, attention, dropout=0.5) in train mode, where only {finder} adds something"
        wrong, dropped, alone = dropped_shares(ask(inputs, "half") - inputs["x"], whole)
        yours = f"{wrong:.0%} of the added numbers are neither dropped nor doubled, {dropped:.0%} are dropped"
        if not wrong and alone < 0.5:
            raise CheckFailed(tried, f"{yours}, many numbers together", f"{EXPECTED}, each independently", TOGETHER)
        if not is_halved(wrong, dropped):
            raise CheckFailed(tried, yours, EXPECTED, HALVED)
    inputs = _inputs_for_dropout(generator, "attention", "down")
    is_silent = (ask(inputs, "output") - inputs["x"]).abs().max() < CLOSE
    if not is_silent or not any(added):
        tried = "a block without dropout, whose parts add something or nothing"
        raise CheckFailed(
            tried, "the block does not add the outputs of its parts", "x plus the outputs of its parts", HALVED
        )


def _inputs_for_dropout(generator: torch.Generator, *silent: str) -> Inputs:
    """Return a case without padding in which the layers `silent` return 0, so that some parts add nothing."""
    b, n, hidden = 6, 7, 8
    shapes = dict.fromkeys(NORMS, (hidden,)) | {"attention": (hidden, hidden)}
    shapes |= {"up": (4 * hidden, hidden), "down": (hidden, 4 * hidden)}
    drawn = {f"{layer}_weight": shape for layer, shape in shapes.items()}
    drawn |= {f"{layer}_bias": shape[:1] for layer, shape in shapes.items()}
    inputs = {name: torch.rand(shape, generator=generator) - 0.5 for name, shape in drawn.items()}
    inputs |= {f"{norm}_weight": 1 + inputs[f"{norm}_weight"] for norm in NORMS}
    inputs |= {name: torch.zeros(shape) for name, shape in drawn.items() if name.rpartition("_")[0] in silent}
    x = 4 * torch.rand(b, n, hidden, generator=generator) - 2
    return inputs | {"x": x, "visible": torch.ones(b, n, dtype=torch.bool)}


def _check_halves(answer: Callable) -> None:
    """Raise CheckFailed unless the student's block drops half of its parts' outputs with dropout=0.5."""

    def ask(inputs: Inputs, output: str) -> Tensor:
        given, tried = on_device(inputs), _tried(inputs, output)
        with described_errors(tried, f"{output}, a tensor"):
            build = _build_half if output == "half" else lambda made, case: _block(made, case, "output")
            found = next(_call_half(build(answer, given), given))
            if not isinstance(found, Tensor) or found.shape != inputs["x"].shape:
                raise CheckFailed(tried, f"{output} is {kind(found)}", "output (b, n, hidden)", HALVED)
        return found.detach().cpu()

    check_halves(ask, torch.Generator().manual_seed(1))


def encoder_block_output(answer: Callable) -> None:
    """Check what the student's `TransformerEncoderBlock` computes without dropout."""
    output = ENCODER_BLOCK.only("without dropout it is", "output")
    output.check(answer, output.check_on_other_device)


def encoder_block(answer: Callable) -> None:
    """Check all of the student's `TransformerEncoderBlock`, with and without dropout, around a simple attention."""
    ENCODER_BLOCK.check(answer, _check_halves)
