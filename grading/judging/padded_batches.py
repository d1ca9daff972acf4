"""Shared by exercises with padded batches: drawing such batches, judging padding, and mistakes with it."""

import random
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from grading.isolation.answers import Answer
from grading.judging.judge import Rule, Tolerances, as_given, right, values
from grading.judging.mistakes import SOFTMAX
from grading.judging.properties import Property, same
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.engine.verdict import Mark


def draw_batch(rng: random.Random, sizes: dict[str, int], hidden: int, bound: float) -> Arrays:
    """Return sequences of different lengths, the last without padding; the numbers at padding are larger."""
    b, n = sizes["b"], sizes["n"]
    drawn = sorted(range(2, n), key=lambda length: rng.random())[: b - 1]
    lengths = [*sorted(drawn, reverse=True), n]  # of three or more, the first is neither the longest nor the shortest
    visible = np.arange(n) < np.array(lengths)[:, None]  # (b, n)
    words = dyadic(rng, b, n, hidden, bound=bound * sizes.get("magnitude", 1))
    return {"x": np.where(visible[..., None], words, dyadic(rng, b, n, hidden, bound=3 * bound)), "visible": visible}


def attended(case: Arrays, layer: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Arrays:
    """Return the outputs of a one-sequence layer for each sequence, whole and cut to its real tokens; 0 at padding."""
    x = case["x"]
    padded = np.zeros_like(x)
    for sequence, length in enumerate(case["visible"].sum(axis=1)):
        padded[sequence, :length] = layer(x[sequence, :length])
    return {"whole": np.stack([layer(sequence) for sequence in x]), "padded": padded}


def is_right(output: str) -> Rule:
    """Return the rule that one output must be right, regardless of the others."""
    return lambda outputs, case, expected, allowed: right(output, outputs, expected, allowed)


def padding(record: ValueRecord, part: Part, answer: Answer, rng: random.Random) -> Mark:
    """Judge how an answer treats padding, even if it is wrong for sequences without padding.

    If unpadded sequences are right, padded ones must be right too. If not, padding must still change nothing: each
    sequence in a padded batch gives the same outputs as alone, cut to its real tokens. And masking must matter: a real
    token must affect others, and the weights of the layers must affect all.
    """

    def ask(case: Arrays, **how: bool) -> Arrays:
        inputs = {name: as_given(array) for name, array in case.items()}
        return answer.ask("call", inputs, name=record.defines, evaluate=True, **how)[1]

    def reads(outputs: Arrays, case: Arrays) -> bool:
        """Return whether the outputs depend on other tokens, and on the weights if there are any."""
        padded, real = outputs["padded"], case["visible"] & (np.arange(case["visible"].shape[1]) > 0)

        def differs(changed: Arrays, **how: bool) -> bool:
            other = ask(case | changed, **how).get("outputs/padded")
            return other is not None and other.shape == padded.shape and not same(other[real], padded[real])

        # Another first token. A single one may get no weight; a multiple of the second token gets some at the second
        # position.
        first, second = case["x"][:, :1], case["x"][:, 1:2]
        firsts = (1 - 2 * first, 4 * second, -4 * second)
        if not any(differs({"x": np.concatenate([token, case["x"][:, 1:]], axis=1)}) for token in firsts):
            return False
        weights = {name: -case[name] for name in case.keys() - {*record.public.reads} if case[name].dtype == np.float64}
        if not weights:
            return True
        found = differs(weights, build=True)
        ask(case, build=True)  # unchanged
        return found

    def hidden(outputs: Arrays, case: Arrays, expected: Arrays, allowed: Tolerances) -> bool:
        if right("padded", outputs, expected, allowed):
            return True
        if outputs.keys() != expected.keys() or right("whole", outputs, expected, allowed):
            return False
        shown = []
        for sequence, length in enumerate(case["visible"].sum(axis=1)):
            here = (slice(sequence, sequence + 1), slice(length))
            cut = case | {name: case[name][here] for name in record.public.reads}
            alone = ask(cut).get("outputs/whole")
            padded, whole = outputs["padded"][here], outputs["whole"][here]
            if alone is None or not np.isfinite(padded).all() or not same(padded, alone):
                return False
            if not same(expected["whole"][here], expected["padded"][here]):  # or padding has no weight anyway
                shown.append(not same(whole, alone))
        # Where no token is attended to, there is nothing to mask. In a single sequence, that may happen by chance.
        return (any(shown) or not shown) and reads(outputs, case)

    return values(record, part, answer, rng, rule=hidden)


def ignores_padding(output: str) -> Property:
    """Return the property of an output that does not depend on the values at padding."""

    def holds(ask: Callable[[Arrays], Arrays], case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
        other = dyadic(rng, *case["x"].shape, bound=2)
        changed = case | {"x": np.where(case["visible"][..., None], case["x"], other)}
        before, after = ask(case), ask(changed)
        return output not in before or same(before[output], after[output])

    return Property("padding-has-an-effect", holds)


SIZES = "b, n, hidden = x.shape\n"
HIDE = "scores.masked_fill(unreadable, -math.inf)"


def padding_mistakes(answer: str, whole: str, padding: str) -> tuple[WrongAnswer, ...]:
    """Return mistakes with padding, for an answer that unpacks SIZES and masks `unreadable` by HIDE.

    `whole` and `padding` are the parts about batches without padding and with padding.
    """

    def otherwise(name: str, *edits: tuple[str, str], hint: str = "") -> WrongAnswer:
        return edited(name, answer, *edits, fails=(padding,), hint=hint)

    def seen(visible: str) -> tuple[str, str]:
        return SIZES, f"{SIZES}        visible = {visible}\n"

    return (
        otherwise("reads-padding", seen("torch.ones_like(visible)")),
        edited("mask-inverted", answer, seen("~visible"), fails=(whole, padding)),
        otherwise("mask-of-the-first", seen("visible[:1].expand(b, n)")),
        otherwise("first-sequence-only", seen("visible | (torch.arange(b, device=x.device) > 0)[:, None]")),
        otherwise("mask-of-the-shortest", seen("visible.all(dim=0).expand(b, n)")),
        otherwise("hides-the-last-word", seen("visible & visible.roll(-1, dims=1)")),
        otherwise("shows-the-first-pad", seen("visible | visible.roll(1, dims=1)")),
        otherwise("masked-with-zero", ("-math.inf", "0")),
        otherwise("masked-with-minus-one", ("-math.inf", "-1")),
        otherwise("mask-after-softmax", (HIDE, "scores"), (SOFTMAX, f"{SOFTMAX}.masked_fill(unreadable, 0)")),
        otherwise("padding-zeroed", (SIZES, f"{SIZES}        x = x * visible[..., None]\n"), (HIDE, "scores")),
    )
