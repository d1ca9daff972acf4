"""Mistakes shared by several exercises. A hint names the mistake without giving away the answer."""

import re

from grading.judging.record import WrongAnswer, edited
from transformer_lm.checks.engine.calling import (
    CALLED_AGAIN,
    EVAL_MODE,
    ONE_SEQUENCE,
    OTHER_LENGTH,
    OTHER_SIZES,
    SIZE_ONE,
    STRIDED,
)
from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.other_device import MADE_HERE, PLAIN_LIST

IN_PLACE = hint("changed-in-place")
CUT = hint("graph-cut")
ERROR = hint("raises")

NO_EPSILON = "The norm has no epsilon: where the features of a position are all equal, it divides 0 by 0."

SCALED_BY_LENGTH = "The scores are scaled by the number of positions; their spread depends on another size."
KEYS_AS_VALUES = "The keys are averaged in place of the values."
KEYS_VIEWED = (
    "The keys are brought into shape by view or reshape, which does not swap axes: it re-cuts the row of numbers."
)

SOFTMAX = "scores.softmax(dim=-1)"


def scaling_mistakes(
    answer: str, width: str, fails: tuple[str, ...] = (), costs: float | None = None
) -> tuple[WrongAnswer, ...]:
    """Return the ways to scale wrongly, for an answer that divides once by `width**0.5`.

    `fails` names the part about scores; `costs` is the deduction for not scaling at all, if not all points.
    """
    root = f"{width}**0.5"
    return (
        edited(
            "not-scaled",
            "The scores are not scaled: their spread grows with the width of the keys, and the softmax hardens.",
            answer,
            (f" / {root}", ""),
            fails=fails,
            costs=costs,
        ),
        edited(
            "scaled-by-width",
            "The scores are divided by the width itself, or twice by its root: that shrinks them too much.",
            answer,
            (root, width),
            fails=fails,
        ),
        edited(
            "scaled-by-square",
            "The scores are divided by the square of the width: that shrinks them far too much.",
            answer,
            (root, f"{width}**2"),
            fails=fails,
        ),
        edited(
            "scaled-by-half",
            "The scores are divided by the width and by 2: `** 1 / 2` is a power of 1, and then a half.",
            answer,
            (root, f"{width} ** 1 / 2"),
            fails=fails,
        ),
        edited(
            "multiplied",
            "The scores are multiplied where they should be divided: they spread even more.",
            answer,
            (f"/ {root}", f"* {root}"),
            fails=fails,
        ),
    )


def score_mistakes(answer: str, width: str, fails: tuple[str, ...] = ()) -> tuple[WrongAnswer, ...]:
    """Return mistakes in the scores, for one head or several; not scaling them costs one point.

    For an answer with k, q and v from `self.k(x)` and so on, and scores from `q @ k.transpose` over `width**0.5`.
    """
    root = f"{width}**0.5"
    return (
        *scaling_mistakes(answer, width, fails, costs=1),
        edited("scaled-by-length", SCALED_BY_LENGTH, answer, (root, "x.shape[1] ** 0.5"), fails=fails),
        edited(
            "scaled-by-input-size",
            "The scores are scaled by the input size; the dot product runs over another axis.",
            answer,
            (root, "x.shape[2] ** 0.5"),
            fails=fails,
        ),
        edited(
            "query-key-swapped",
            "Queries and keys are swapped: row i must hold the scores of query i.",
            answer,
            ("q @ k.transpose", "k @ q.transpose"),
            fails=fails,
        ),
        edited(
            "no-bias",
            "The bias of the projections is missing: you use the weights of the linear layers only.",
            answer,
            *((f"self.{layer}(x)", f"x @ self.{layer}.weight.T") for layer in "kqv"),
            fails=fails,
        ),
    )


def one_layer_for_all(answer: str, projected: str, fails: tuple[str, ...] = ()) -> tuple[WrongAnswer, ...]:
    """Return answers that take keys, queries and values from one layer, where `projected` calls all three."""
    return tuple(
        edited(
            f"{layer}-for-all",
            "One layer makes keys, queries and values: each of the three needs its own.",
            answer,
            (projected, re.sub(r"self\.[kqv]\(", f"self.{layer}(", projected)),
            fails=fails,
        )
        for layer in "kqv"
    )


def softmax_mistakes(answer: str) -> tuple[WrongAnswer, ...]:
    """Return mistakes in the weights, for `scores.softmax(dim=-1)` over the axes (batch, query, key)."""
    return (
        edited(
            "softmax-over-queries",
            "The softmax runs over the queries: for each query, the weights of all keys must sum to 1.",
            answer,
            (SOFTMAX, "scores.softmax(dim=1)"),
        ),
        edited(
            "softmax-over-batch",
            "The softmax runs over the batch, so sequences compete with each other. Which axis holds the keys?",
            answer,
            (SOFTMAX, "scores.softmax(dim=0)"),
        ),
        edited(
            "softmax-twice",
            "The softmax is applied twice: the second one flattens the weights towards equal shares.",
            answer,
            (SOFTMAX, f"{SOFTMAX}.softmax(dim=-1)"),
        ),
        edited(
            "no-softmax", "There is no softmax: the scores themselves are used as weights.", answer, (SOFTMAX, "scores")
        ),
        edited(
            "not-normalised",
            "The exponentials are not divided by their sum: the weights of a query must sum to 1.",
            answer,
            (SOFTMAX, "scores.exp()"),
        ),
        edited(
            "log-softmax",
            "The weights are logarithms: a log-softmax is for losses, an average needs shares that sum to 1.",
            answer,
            (SOFTMAX, "scores.log_softmax(dim=-1)"),
        ),
    )


def overflowing_softmax(answer: str, fails: tuple[str, ...] = ()) -> WrongAnswer:
    """Return the answer whose softmax is right unless scores are large, for `scores.softmax(dim=-1)`."""
    by_hand = "scores.exp() / scores.exp().sum(dim=-1, keepdim=True)"
    return edited("softmax-that-overflows", OTHER_SIZES, answer, (SOFTMAX, by_hand), fails=fails)


WRAPPER = """
right_answer, calls = {function}, []


def each(change, result):
    return change(result) if isinstance(result, Tensor) else tuple(change(part) for part in result)


def misbehaving(*given, **options):
    x = [tensor for tensor in given if isinstance(tensor, Tensor)][0]
    result = right_answer(*given, **options)
    calls.append(x.shape)
    {change}
    return result


{function} = misbehaving
"""


def misbehaviours(
    answer: str, function: str, longer: tuple[int, int], calls: int = 1, parts: tuple[str, ...] = ()
) -> tuple[WrongAnswer, ...]:
    """Return answers that give right first numbers but are wrong in another way.

    For an answer with a function, or a method such as `SelfAttention.forward`, whose first tensor is (b, n, d).
    `longer` is (b, n) in the case of another length; `calls` is the number of calls for one case. Wrong numbers at a
    later call cost the points of all `parts`.
    """
    spoil = "result = each(torch.zeros_like, result)"
    return tuple(
        WrongAnswer(name, hint, answer + WRAPPER.format(function=function, change=change), fails)
        for name, hint, fails, change in (
            ("changes-its-input", IN_PLACE, (), f"if len(calls) % {calls} == 0: x.zero_()"),
            ("cuts-the-gradient", CUT, (), "result = each(Tensor.detach, result)"),
            ("differs-the-second-time", CALLED_AGAIN, parts, f"if calls.count(x.shape) > {calls}: {spoil}"),
            ("loses-a-batch-of-one", ONE_SEQUENCE, (), "result = each(lambda part: part.squeeze(0), result)"),
            ("views-its-input", STRIDED, (), "x.view(-1)"),
            ("fits-one-length", OTHER_LENGTH, parts, f"if x.shape[:2] == {longer}: {spoil}"),
            (
                "made-on-the-cpu",
                MADE_HERE,
                (),
                "result = each(lambda part: part + torch.zeros(1, dtype=part.dtype), result)",
            ),
            ("fits-known-sizes", OTHER_SIZES, parts, f"if x.shape[1] > 17: {spoil}"),
        )
    )


def loses_a_length_of_one(answer: str, function: str, fails: tuple[str, ...] = ()) -> WrongAnswer:
    """Return the answer whose outputs lose their second axis where its size is 1, as at the start of generation."""
    source = answer + WRAPPER.format(function=function, change="result = each(lambda part: part.squeeze(1), result)")
    return WrongAnswer("loses-a-length-of-one", SIZE_ONE, source, fails)


def no_epsilon(answer: str, *norms: str, fails: tuple[str, ...] = ()) -> WrongAnswer:
    """Return the module whose norms, called as `self.norm(x)`, are computed by hand and divide by 0."""
    by_hand = """
    def normalised(self, x, norm):
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return (x - mean) / variance.sqrt() * norm.weight + norm.bias
"""
    edits = [(norm, "self.normalised({1}, {0})".format(*norm.rstrip(")").split("("))) for norm in norms]
    return edited("no-epsilon", NO_EPSILON, answer + by_hand, *edits, fails=fails)


def in_a_plain_list(answer: str, part: str, fails: tuple[str, ...] = ()) -> WrongAnswer:
    """Return the module that keeps a given part, such as `attention`, in a plain Python list."""
    source = answer.replace(f"self.{part}(", f"self.{part}[0](")
    edit = (f"self.{part} = {part}\n", f"self.{part} = [{part}]\n")
    return edited(f"{part}-in-a-plain-list", PLAIN_LIST, source, edit, fails=fails)


def only_in_training(answer: str, forward: str, parts: tuple[str, ...] = ()) -> WrongAnswer:
    """Return the module that computes something else in eval mode."""
    change = "result = result if given[0].training else each(torch.zeros_like, result)"
    source = answer + WRAPPER.format(function=forward, change=change)
    return WrongAnswer("right-in-training-only", EVAL_MODE, source, parts)


def comment_mistakes(answer: str, line: str, shape: str, other: str, part: str) -> tuple[WrongAnswer, ...]:
    """Return right answers with a wrong comment: `line` ends in a comment `shape`, and `other` is another shape."""
    commented = f"{line}  # {shape}"
    name = line.partition(" ")[0]
    return (
        edited("comment-missing", f"`{name}` has no shape comment", answer, (commented, line), fails=(part,)),
        edited("comment-wrong", f"`{name}` is said to be", answer, (commented, f"{line}  # {other}"), fails=(part,)),
        edited("comment-without-shape", "has no shape", answer, (commented, f"{line}  # the weights"), fails=(part,)),
    )


def style_mistakes(answer: str, assignment: str, part: str) -> tuple[WrongAnswer, ...]:
    """Return right answers that violate PEP 8, at an assignment with spaces around `=`."""
    squeezed = assignment.replace(" = ", "=")
    return (
        edited("no-spaces", "E225 missing whitespace around operator", answer, (assignment, squeezed), fails=(part,)),
        edited(
            "semicolon",
            "E702 multiple statements on one line (semicolon)",
            answer,
            (assignment, f"pass; {assignment}"),
            fails=(part,),
        ),
        edited(
            "extra-spaces",
            "E222 multiple spaces after operator",
            answer,
            (assignment, assignment.replace("= ", "=  ")),
            fails=(part,),
        ),
    )
