"""Check of topic 01: keys, queries and values in one product."""

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, load_parameters
from transformer_lm.checks.engine.failure import CheckFailed, described_errors, kind, passed
from transformer_lm.checks.topic_01_self_attention.linear_layers import TWO_SIZES, Sizes, check_linear
from transformer_lm.shapes import describe


def _tried_kqv(inputs: Inputs, output: str) -> str:
    three_hidden, input_size = inputs["weight"].shape
    return f"kqv(x, nn.Linear({input_size}, {three_hidden})) on {describe('x', inputs['x'], 'b n d')}"


def _build_kqv(answer: Callable, inputs: Inputs) -> tuple[Callable, nn.Linear]:
    three_hidden, input_size = inputs["weight"].shape
    weights = {"weight": inputs["weight"], "bias": inputs["bias"]}
    return answer, load_parameters(nn.Linear(input_size, three_hidden), weights, _tried_kqv(inputs, "keys"))


def _call_kqv(subject: tuple[Callable, nn.Linear], inputs: Inputs) -> Iterator[Tensor]:
    answer, layer = subject
    returned = answer(inputs["x"], layer)
    if not isinstance(returned, tuple | list) or len(returned) != 3:
        known = hint("not-three", "kqv")
        raise CheckFailed(
            _tried_kqv(inputs, "keys"), f"the return value is {kind(returned)}", "a tuple of 3 values", known
        )
    yield from returned


KQV = PublicExercise(
    id="kqv",
    axes={"keys": "b n dh", "queries": "b n dh", "values": "b n dh"},
    trains=("keys", "queries", "values"),
    reads=("x",),
    build=_build_kqv,
    call=_call_kqv,
    tried=_tried_kqv,
    products=1,
    returned_together=(("keys", "queries", "values"),),
)


def kqv_parameters(create_kqv_parameters: Callable, sizes: Sizes = TWO_SIZES) -> None:
    """Check what `create_kqv_parameters` returns: one linear layer of the right sizes."""
    for input_size, hidden in sizes:
        tried = f"create_kqv_parameters(input_size={input_size}, hidden={hidden})"
        with described_errors(tried, "one linear layer"):
            layer = create_kqv_parameters(input_size, hidden)
        check_linear(tried, "what it returns", layer, input_size, 3 * hidden)
    passed("kqv", "the parameters are one linear layer of the right sizes.")


def kqv(answer: Callable) -> None:
    """Check the student's `kqv`: the three tensors are right and come from one matrix product."""
    KQV.check(answer)
