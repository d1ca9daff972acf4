"""Check of topic 06: a decoder block with cross-attention, around three given parts."""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from torch import Tensor, nn

from transformer_lm.checks.engine.calling import CALLED_AGAIN
from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, load_parameters, require_own
from transformer_lm.checks.engine.diagnosis import close
from transformer_lm.checks.engine.failure import CheckFailed, kind
from transformer_lm.shapes import describe, in_words

NORMS = ("attention_norm", "cross_norm", "mlp_norm")
READS = ("x", "memory", "target_visible", "source_visible")

MODES = hint("right-in-training-only", "cross-block")
MASKS = hint("masks-exchanged", "cross-block")
EXCHANGED = hint("source-and-target-exchanged", "cross-block")
NOT_MEMORY = hint("target-read-with-the-mask-of-the-source", "cross-block")
GIVEN = hint("not-the-given-norm", "cross-block")


class MeanOfVisible(nn.Module):
    """A substitute for self-attention: the mean of the visible positions, followed by a linear layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.attention = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return the output for each position, (b, n, hidden) like x; without `visible`, all positions are visible."""
        b, n, _ = x.shape
        if visible is None:
            visible = x.new_ones(b, n, n)
        if visible.shape != (b, n, n):
            _refuse(f"attention({describe('x', x, 'b n hidden')}, visible)", visible, (b, n, n), "b n n", MASKS)
        shares = visible.to(x.dtype)[..., None]  # (b, n, n, 1)
        return self.attention((shares * x[:, None]).sum(dim=2) / shares.sum(dim=2))


class MeanOfSource(nn.Module):
    """A substitute for cross-attention: the visible source's mean minus each position, then a linear layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.cross = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, memory: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return the output for each position, (b, n, hidden) like x; without `visible`, all of memory is visible."""
        b, m, _ = memory.shape
        if visible is None:
            visible = memory.new_ones(b, m)
        if visible.shape != (b, m):
            given = f"{describe('x', x, 'b n hidden')}, {describe('memory', memory, 'b m hidden')}"
            known = MASKS if visible.dim() != 2 else EXCHANGED if visible.shape == x.shape[:2] else NOT_MEMORY
            _refuse(f"cross_attention({given}, visible)", visible, (b, m), "b m", known)
        shares = visible.to(x.dtype)[..., None]  # (b, m, 1)
        return self.cross((shares * memory).sum(dim=1, keepdim=True) / shares.sum(dim=1, keepdim=True) - x)


def _refuse(tried: str, visible: Tensor, shape: tuple[int, ...], axes: str, known: str) -> None:
    raise CheckFailed(tried, f"visible of shape {tuple(visible.shape)}", f"visible {in_words(shape, axes)}", known)


def _sizes(inputs: Inputs) -> tuple[int, int]:
    width, hidden = inputs["up_weight"].shape
    return hidden, width


def _tried(inputs: Inputs, output: str) -> str:
    hidden, _ = _sizes(inputs)
    x, memory = (describe(name, inputs[name], f"b {length} hidden") for name, length in (("x", "n"), ("memory", "m")))
    made = f"CrossDecoderBlock({hidden}, attention, cross_attention, mlp)"
    return f"{made} with given weights on {x} and {memory} with their masks"


def _weights(inputs: Inputs, *layers: str) -> Inputs:
    return {f"{layer}.{part}": inputs[f"{layer}_{part}"] for layer in layers for part in ("weight", "bias")}


def _build(answer: Callable, inputs: Inputs) -> nn.Module:
    """Return the student's block around substitutes for attention, cross-attention and the MLP."""
    hidden, width = _sizes(inputs)
    tried = _tried(inputs, "output")
    layers = OrderedDict(up=nn.Linear(hidden, width), relu=nn.ReLU(), down=nn.Linear(width, hidden))
    attention = load_parameters(MeanOfVisible(hidden), _weights(inputs, "attention"), tried)
    cross_attention = load_parameters(MeanOfSource(hidden), _weights(inputs, "cross"), tried)
    mlp = load_parameters(nn.Sequential(layers), _weights(inputs, "up", "down"), tried)
    block = answer(hidden, attention, cross_attention, mlp)
    if isinstance(block, nn.Module):
        for name in NORMS:
            _check_norm(tried, name, getattr(block, name, None), hidden)
    return load_parameters(block, _weights(inputs, *NORMS), tried)


def _check_norm(tried: str, name: str, norm: object, hidden: int) -> None:
    """Raise CheckFailed unless a layer is the LayerNorm that the notebook provides."""
    as_given = nn.LayerNorm(hidden)
    if isinstance(norm, nn.LayerNorm) and repr(norm) == repr(as_given):
        return
    yours = repr(norm) if isinstance(norm, nn.Module) else kind(norm)
    raise CheckFailed(tried, f"self.{name} is {yours}", f"self.{name} is {as_given}", GIVEN)


def _call(block: nn.Module, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the output, after checking that it is the same in train mode and in eval mode."""
    kept = {name: inputs[name].detach().clone() for name in READS}  # a call may change its arguments
    mode = block.training

    def called(training: bool) -> object:
        return block.train(training)(*(kept[name].clone() for name in READS))

    output = block(*(inputs[name] for name in READS))
    if isinstance(output, Tensor) and not _same(called(not mode), output):
        modes = ("train", "eval") if mode else ("eval", "train")
        yours, known = "{} mode gives another output than {} mode".format(*modes), MODES
        if not _same(called(mode), output):
            yours, known = "another output the second time", CALLED_AGAIN
        raise CheckFailed(_tried(inputs, "output"), yours, "the same output in both modes", known)
    block.train(mode)
    yield output


def _same(again: object, output: Tensor) -> bool:
    return isinstance(again, Tensor) and close(again, output)


CROSS_BLOCK = PublicExercise(
    id="cross-block",
    axes={"output": "b n hidden"},
    trains=("output",),
    reads=READS,
    build=_build,
    call=_call,
    tried=_tried,
)


def cross_block(answer: Callable) -> None:
    """Check the student's `CrossDecoderBlock` in train and in eval mode, with simple parts that use their masks."""
    require_own(answer)
    CROSS_BLOCK.check(answer)
