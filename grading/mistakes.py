"""Mistakes that more than one exercise knows. A hint names the mistake and keeps the answer to itself."""

from grading.record import WrongAnswer, edited

SCALED_BY_LENGTH = "The scores are scaled by the number of positions; their spread depends on another size."
KEYS_AS_VALUES = "The keys are averaged in place of the values."
KEYS_VIEWED = (
    "The keys are brought into shape by view or reshape, which does not swap axes: it re-cuts the row of numbers."
)

SOFTMAX = "scores.softmax(dim=-1)"


def scaling_mistakes(answer: str, width: str) -> tuple[WrongAnswer, ...]:
    """Return the ways to scale wrongly, for an answer that divides once by `width**0.5`."""
    root = f"{width}**0.5"
    return (
        edited(
            "not-scaled",
            "The scores are not scaled: their spread grows with the width of the keys, and the softmax hardens.",
            answer,
            (f" / {root}", ""),
        ),
        edited(
            "scaled-by-width",
            "The scores are divided by the width itself, or twice by its root: that shrinks them too much.",
            answer,
            (root, width),
        ),
        edited(
            "scaled-by-square",
            "The scores are divided by the square of the width: that shrinks them far too much.",
            answer,
            (root, f"{width}**2"),
        ),
        edited(
            "scaled-by-half",
            "The scores are divided by the width and by 2: `** 1 / 2` is a power of 1, and then a half.",
            answer,
            (root, f"{width} ** 1 / 2"),
        ),
        edited(
            "multiplied",
            "The scores are multiplied where they should be divided: they spread even more.",
            answer,
            (f"/ {root}", f"* {root}"),
        ),
    )


def attention_mistakes(answer: str, width: str) -> tuple[WrongAnswer, ...]:
    """Return what goes wrong in one head as in several.

    For an answer with k, q and v from `self.k(x)` and so on, scores from `q @ k.transpose` over `width**0.5`, and
    `scores.softmax(dim=-1)` over the axes (batch, query, key).
    """
    root = f"{width}**0.5"
    return (
        *scaling_mistakes(answer, width),
        edited("scaled-by-length", SCALED_BY_LENGTH, answer, (root, "x.shape[1] ** 0.5")),
        edited(
            "scaled-by-input-size",
            "The scores are scaled by the input size; the dot product runs over another axis.",
            answer,
            (root, "x.shape[2] ** 0.5"),
        ),
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
        edited(
            "query-key-swapped",
            "Queries and keys are swapped: row i must hold the scores of query i.",
            answer,
            ("q @ k.transpose", "k @ q.transpose"),
        ),
        edited(
            "no-bias",
            "The bias of the projections is missing: you use the weights of the linear layers only.",
            answer,
            *((f"self.{layer}(x)", f"x @ self.{layer}.weight.T") for layer in "kqv"),
        ),
    )
