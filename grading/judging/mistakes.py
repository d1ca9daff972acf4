"""Mistakes shared by several exercises. A hint names the mistake without giving away the answer."""

import re

from grading.judging.record import WrongAnswer, edited

SOFTMAX = "scores.softmax(dim=-1)"


def scaling_mistakes(
    answer: str, width: str, fails: tuple[str, ...] = (), costs: float | None = None
) -> tuple[WrongAnswer, ...]:
    """Return the ways to scale wrongly, for an answer that divides once by `width**0.5`.

    `fails` names the part about scores; `costs` is the deduction for not scaling at all, if not all points.
    """
    root = f"{width}**0.5"
    return (
        edited("not-scaled", answer, (f" / {root}", ""), fails=fails, costs=costs),
        edited("scaled-by-width", answer, (root, width), fails=fails),
        edited("scaled-by-square", answer, (root, f"{width}**2"), fails=fails),
        edited("scaled-by-half", answer, (root, f"{width} ** 1 / 2"), fails=fails),
        edited("multiplied", answer, (f"/ {root}", f"* {root}"), fails=fails),
    )


def score_mistakes(answer: str, width: str, fails: tuple[str, ...] = ()) -> tuple[WrongAnswer, ...]:
    """Return mistakes in the scores, for one head or several; not scaling them costs one point.

    For an answer with k, q and v from `self.k(x)` and so on, and scores from `q @ k.transpose` over `width**0.5`.
    """
    root = f"{width}**0.5"
    return (
        *scaling_mistakes(answer, width, fails, costs=1),
        edited("scaled-by-length", answer, (root, "x.shape[1] ** 0.5"), fails=fails),
        edited("scaled-by-input-size", answer, (root, "x.shape[2] ** 0.5"), fails=fails),
        edited("query-key-swapped", answer, ("q @ k.transpose", "k @ q.transpose"), fails=fails),
        edited(
            "no-bias", answer, *((f"self.{layer}(x)", f"x @ self.{layer}.weight.T") for layer in "kqv"), fails=fails
        ),
    )


def one_layer_for_all(answer: str, projected: str, fails: tuple[str, ...] = ()) -> tuple[WrongAnswer, ...]:
    """Return answers that take keys, queries and values from one layer, where `projected` calls all three."""
    return tuple(
        edited(
            f"{layer}-for-all",
            answer,
            (projected, re.sub(r"self\.[kqv]\(", f"self.{layer}(", projected)),
            fails=fails,
            hint="one-layer-for-all",
        )
        for layer in "kqv"
    )


def softmax_mistakes(answer: str) -> tuple[WrongAnswer, ...]:
    """Return mistakes in the weights, for `scores.softmax(dim=-1)` over the axes (batch, query, key)."""
    return (
        edited("softmax-over-queries", answer, (SOFTMAX, "scores.softmax(dim=1)")),
        edited("softmax-over-batch", answer, (SOFTMAX, "scores.softmax(dim=0)")),
        edited("softmax-twice", answer, (SOFTMAX, f"{SOFTMAX}.softmax(dim=-1)")),
        edited("no-softmax", answer, (SOFTMAX, "scores")),
        edited("not-normalised", answer, (SOFTMAX, "scores.exp()")),
        edited("log-softmax", answer, (SOFTMAX, "scores.log_softmax(dim=-1)")),
    )


def overflowing_softmax(answer: str, fails: tuple[str, ...] = ()) -> WrongAnswer:
    """Return the answer whose softmax is right unless scores are large, for `scores.softmax(dim=-1)`."""
    by_hand = "scores.exp() / scores.exp().sum(dim=-1, keepdim=True)"
    return edited("softmax-that-overflows", answer, (SOFTMAX, by_hand), fails=fails, hint="other-sizes")


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
        WrongAnswer(name, answer + WRAPPER.format(function=function, change=change), fails, hint=hint)
        for name, hint, fails, change in (
            ("changes-its-input", "changed-in-place", (), f"if len(calls) % {calls} == 0: x.zero_()"),
            ("cuts-the-gradient", "graph-cut", (), "result = each(Tensor.detach, result)"),
            ("differs-the-second-time", "called-again", parts, f"if calls.count(x.shape) > {calls}: {spoil}"),
            ("loses-a-batch-of-one", "one-sequence", (), "result = each(lambda part: part.squeeze(0), result)"),
            ("views-its-input", "strided", (), "x.view(-1)"),
            ("fits-one-length", "other-length", parts, f"if x.shape[:2] == {longer}: {spoil}"),
            (
                "made-on-the-cpu",
                "always-on-the-cpu",
                (),
                "result = each(lambda part: part + torch.zeros(1, dtype=part.dtype), result)",
            ),
            ("fits-known-sizes", "other-sizes", parts, f"if x.shape[1] > 17: {spoil}"),
        )
    )


def loses_a_length_of_one(answer: str, function: str, fails: tuple[str, ...] = ()) -> WrongAnswer:
    """Return the answer whose outputs lose their second axis where its size is 1, as at the start of generation."""
    source = answer + WRAPPER.format(function=function, change="result = each(lambda part: part.squeeze(1), result)")
    return WrongAnswer("loses-a-length-of-one", source, fails, hint="size-one")


def no_epsilon(answer: str, *norms: str, fails: tuple[str, ...] = ()) -> WrongAnswer:
    """Return the module whose norms, called as `self.norm(x)`, are computed by hand and divide by 0."""
    by_hand = """
    def normalised(self, x, norm):
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return (x - mean) / variance.sqrt() * norm.weight + norm.bias
"""
    edits = [(norm, "self.normalised({1}, {0})".format(*norm.rstrip(")").split("("))) for norm in norms]
    return edited("no-epsilon", answer + by_hand, *edits, fails=fails)


def in_a_plain_list(answer: str, part: str, fails: tuple[str, ...] = ()) -> WrongAnswer:
    """Return the module that keeps a given part, such as `attention`, in a plain Python list."""
    source = answer.replace(f"self.{part}(", f"self.{part}[0](")
    edit = (f"self.{part} = {part}\n", f"self.{part} = [{part}]\n")
    return edited(f"{part}-in-a-plain-list", source, edit, fails=fails, hint="layers-in-a-plain-list")


def only_in_training(answer: str, forward: str, parts: tuple[str, ...] = ()) -> WrongAnswer:
    """Return the module that computes something else in eval mode."""
    change = "result = result if given[0].training else each(torch.zeros_like, result)"
    source = answer + WRAPPER.format(function=forward, change=change)
    return WrongAnswer("right-in-training-only", source, parts, hint="eval-mode")


def comment_mistakes(answer: str, line: str, shape: str, other: str, part: str) -> tuple[WrongAnswer, ...]:
    """Return right answers with a wrong comment: `line` ends in a comment `shape`, and `other` is another shape."""
    commented = f"{line}  # {shape}"
    variable = line.partition(" ")[0]
    return tuple(
        edited(name, answer, (commented, new), fails=(part,), hint=hint, says=says)
        for name, new, hint, says in (
            ("comment-missing", line, "shapes-missing", f"`{variable}` has no shape comment"),
            ("comment-wrong", f"{line}  # {other}", "shapes-wrong", f"`{variable}` is said to be"),
            ("comment-without-shape", f"{line}  # the weights", "shapes-missing", "has no shape"),
        )
    )


def style_mistakes(answer: str, assignment: str, part: str) -> tuple[WrongAnswer, ...]:
    """Return right answers that violate PEP 8, at an assignment with spaces around `=`."""
    return tuple(
        edited(name, answer, (assignment, new), fails=(part,), hint="style-findings", says=finding)
        for name, new, finding in (
            ("no-spaces", assignment.replace(" = ", "="), "E225 missing whitespace around operator"),
            ("semicolon", f"pass; {assignment}", "E702 multiple statements on one line (semicolon)"),
            ("extra-spaces", assignment.replace("= ", "=  "), "E222 multiple spaces after operator"),
        )
    )
