"""Check of topic 04: token embeddings plus position embeddings."""

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, load_parameters, require_own
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.checks.topic_03_classification.tables import check_table
from transformer_lm.shapes import describe

OTHER_NAME = hint("another-name", "embed")
PADDING_INDEX = hint("token-zero-never-learns", "embed")


def _given(inputs: Inputs, output: str) -> Tensor:
    """Return the tokens, or the tokens repeated until there are max_len of them."""
    tokens, max_len = inputs["tokens"], len(inputs["positions_weight"])
    if output == "output":
        return tokens
    times = -(-max_len // tokens.shape[1])  # rounded up
    return tokens.repeat(1, times)[:, :max_len].contiguous()


def _sizes(inputs: Inputs) -> tuple[int, int, int]:
    vocab_size, hidden = inputs["tokens_weight"].shape
    return vocab_size, hidden, len(inputs["positions_weight"])


def _tried(inputs: Inputs, output: str) -> str:
    sizes = ", ".join(map(str, _sizes(inputs)))
    return f"Embed({sizes}) with given weights on {describe('tokens', _given(inputs, output), 'b n')}"


def _build(answer: Callable, inputs: Inputs) -> nn.Module:
    vocab_size, hidden, max_len = _sizes(inputs)
    tried = _tried(inputs, "output")
    module = answer(vocab_size, hidden, max_len)
    for name, rows in (("tokens", vocab_size), ("positions", max_len)):
        expected = f"self.{name} is nn.Embedding({rows}, {hidden})"
        if isinstance(module, nn.Module) and not hasattr(module, name):
            raise CheckFailed(tried, f"self.{name} is missing", expected, OTHER_NAME)
        check_table(tried, module, name, rows, hidden)
        if getattr(getattr(module, name, None), "padding_idx", None) is not None:
            raise CheckFailed(tried, f"self.{name} has a padding_idx", expected, PADDING_INDEX)
    weights = {f"{table}.weight": inputs[f"{table}_weight"] for table in ("tokens", "positions")}
    return load_parameters(module, weights, tried)


def _call(module: nn.Module, inputs: Inputs) -> Iterator[Tensor]:
    given = [_given(inputs, output) for output in EMBED.axes]  # before the first call, which might change its input
    yield from map(module, given)


EMBED = PublicExercise(
    id="embed",
    axes={"output": "b n hidden", "output_full": "b n hidden"},
    trains=("output", "output_full"),
    reads=("tokens",),
    build=_build,
    call=_call,
    tried=_tried,
)


def embed(answer: Callable) -> None:
    """Check the student's `Embed`: on fewer than max_len positions, and on max_len."""
    require_own(answer)
    EMBED.check(answer)
