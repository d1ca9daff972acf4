"""The exercise of topic 04 about masking the future: scores of later keys become -inf."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import CUT, misbehaviours
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.engine.calling import OTHER_LENGTH, OTHER_SIZES
from transformer_lm.checks.topic_04_language_model.mask_future import MASK_FUTURE


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return scores, some of them 0, which is an ordinary score."""
    b, h, n = (sizes[name] for name in ("b", "h", "n"))
    scores = dyadic(rng, b, h, n, n, bound=2 * sizes.get("magnitude", 1))
    scores[:, :, -1, 0] = scores[:, :, 1, 1] = 0
    return {"scores": scores}


def reference(case: Arrays) -> Arrays:
    """Return where keys come after queries, and the scores of the other keys, query by query."""
    scores = case["scores"]
    hidden, kept = np.ones_like(scores), np.zeros_like(scores)
    for query in range(scores.shape[2]):
        hidden[:, :, query, : query + 1] = 0
        kept[:, :, query, : query + 1] = scores[:, :, query, : query + 1]
    return {"hidden": hidden, "kept": kept}


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def mask_future(scores):
    b, h, n, _ = scores.shape
    queries, keys = torch.triu_indices(n, n, offset=1, device=scores.device)
    masked = scores.clone()
    masked[:, :, queries, keys] = -math.inf
    return masked
"""

INDICES = "torch.triu_indices(n, n, offset=1, device=scores.device)"
COPY = "scores.clone()"
PLACES = "masked[:, :, queries, keys]"
INFINITY = "-math.inf"
RETURNED = "return masked"


def wrong(
    name: str,
    hint: str,
    indices: str = INDICES,
    copy: str = COPY,
    places: str = PLACES,
    filled: str = INFINITY,
    returned: str = "masked",
) -> WrongAnswer:
    """Return the answer that masks other entries, or with another value."""
    return edited(
        name,
        hint,
        MODEL_ANSWER,
        (INDICES, indices),
        (COPY, copy),
        (PLACES, places),
        (INFINITY, filled),
        (RETURNED, f"return {returned}"),
    )


FINITE = "Hidden scores are {}: -inf is asked for, whose weight is 0 whatever the others are."

WRONG = (
    wrong("not-masked", "Nothing is masked: the scores come back as they were.", returned="scores.clone()"),
    wrong(
        "hides-diagonal",
        "The diagonal is hidden, too: a position may read itself, and the first one would see nothing at all.",
        indices="torch.triu_indices(n, n)",
    ),
    wrong(
        "wrong-triangle",
        "The past is hidden and the future is not: rows are the queries that read, columns the keys they read.",
        indices="torch.tril_indices(n, n, offset=-1)",
    ),
    wrong(
        "past-and-itself-hidden",
        "The past and the diagonal are hidden, the future is not: the triangle is the opposite one.",
        indices="torch.tril_indices(n, n)",
    ),
    wrong(
        "one-step-visible",
        "Each query still sees one key of the future: the triangle begins a step too late.",
        indices="torch.triu_indices(n, n, offset=2)",
    ),
    wrong(
        "next-key-only",
        "Only the very next key is hidden: those further ahead are the future as well.",
        indices="(torch.arange(n - 1), torch.arange(1, n))",
    ),
    wrong(
        "last-key-only",
        "Only the last key is hidden: for most queries others come later, too.",
        places="masked[:, :, :-1, -1]",
    ),
    wrong(
        "all-but-itself-hidden",
        "Each position sees itself alone: what came before it should stay.",
        places="masked[:, :, ~torch.eye(n, dtype=torch.bool)]",
    ),
    wrong("everything-hidden", "Everything is -inf: what came before a query should stay.", places="masked[:]"),
    wrong(
        "other-diagonal",
        "The triangle is mirrored: it follows the diagonal from the upper right, not the one from the upper left.",
        places="masked[:, :, queries, n - 1 - keys]",
    ),
    wrong(
        "upside-down",
        "The triangle stands on its head: the last query should see all keys, the first only itself.",
        places="masked[:, :, n - 1 - queries, keys]",
    ),
    wrong(
        "first-head-only",
        "Only the first head is masked: all of them should be.",
        places="masked[:, 0, queries, keys]",
    ),
    wrong(
        "first-sequence-only",
        "Only the first sequence of the batch is masked: all of them should be.",
        places="masked[0, :, queries, keys]",
    ),
    wrong(
        "masked-with-zero",
        "Hidden scores are 0: a softmax gives them weight all the same, as e to the 0 is 1.",
        filled="0",
    ),
    wrong("masked-with-minus-one", FINITE.format("-1"), filled="-1"),
    wrong("masked-with-a-large-number", FINITE.format("a large negative number"), filled="-1e9"),
    wrong(
        "masked-with-the-smallest-number",
        FINITE.format("the lowest float"),
        filled="torch.finfo(torch.float32).min",
    ),
    wrong(
        "plus-infinity",
        "Hidden scores are +inf: a softmax would give them all the weight, or NaN.",
        filled="math.inf",
    ),
    wrong("masked-with-nan", "Hidden scores are NaN: a softmax turns the whole row into NaN.", filled="math.nan"),
    wrong(
        "infinity-times-zero",
        "There are NaN where scores should stay: infinity times 0 is not 0.",
        returned="scores + -math.inf * torch.ones(n, n).triu(1)",
    ),
    wrong(
        "zeros-hidden-too",
        "Scores of 0 in the past are hidden, too: a 0 does not tell that a place is masked.",
        returned="scores.tril().masked_fill(scores.tril() == 0, -math.inf)",
    ),
    wrong(
        "softmax-included",
        "A softmax is applied to the masked scores: return the scores, the softmax comes later.",
        returned="masked.softmax(dim=-1)",
    ),
    wrong(
        "mask-after-softmax",
        "A softmax is applied before the mask: hidden keys have taken their share already.",
        copy="scores.softmax(dim=-1)",
    ),
    wrong(
        "mask-returned",
        "This is the mask, of True and False: return the scores with -inf in the places that it hides.",
        returned="torch.ones(b, h, n, n, dtype=torch.bool).triu(1)",
    ),
    wrong(
        "scores-lost",
        "This is 0 and -inf, a mask to be added to the scores: they are missing.",
        copy="torch.zeros_like(scores)",
    ),
    wrong(
        "mask-without-batch",
        "This is one mask of 0 and -inf for all: it is still to be added to the scores of each head.",
        returned="torch.full((n, n), -math.inf).triu(1)",
    ),
    wrong(
        "transposed",
        "Queries and keys are swapped in what comes back: row i should still hold the scores of query i.",
        copy="scores.mT.clone()",
    ),
    wrong(
        "transposed-after",
        "The masked scores are transposed: row i should still hold the scores of query i.",
        returned="masked.mT",
    ),
    wrong(
        "scaled",
        "The scores are divided by a root as well: scaling is not part of the mask.",
        copy="scores / n**0.5",
    ),
    wrong(
        "hidden-cut-off",
        "The last key is cut off: the shape stays as it is, and -inf marks what is hidden.",
        returned="masked[..., :-1]",
    ),
)

CHANGED = "Something works in place, such as `+=` or a method that ends in `_`: make a new tensor instead."
ALL = "Hand back the scores themselves, all of them, as one torch tensor."
SHAPES = "Two shapes do not fit together there. Print the shape of each tensor just before that line."
BEHAVIOURS = misbehaviours(MODEL_ANSWER, "mask_future", longer=(4, 3))
# The gradient of masking does not need its input, and the number of heads does not depend on the length.
NOT_TRIED = ("changes-its-input", "fits-known-sizes")

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name not in NOT_TRIED),
    wrong("in-place", CHANGED, copy="scores"),
    wrong("fills-its-input", CHANGED, returned="scores.masked_fill_(torch.ones(n, n).triu(1) == 1, -math.inf)"),
    wrong("detached", CUT, copy="scores.detach().clone()"),
    wrong("first-axes", SHAPES, places="masked[queries, keys]"),
    wrong("heads-taken-for-queries", SHAPES, places="masked[:, queries, keys]"),
    wrong("fixed-length", OTHER_LENGTH, indices="torch.triu_indices(5, 5, offset=1)"),
    wrong("fixed-mask", OTHER_LENGTH, returned="scores + torch.full((5, 5), -math.inf).triu(1)"),
    wrong("fits-known-sizes", OTHER_SIZES, indices="torch.triu_indices(min(n, 17), min(n, 17), offset=1)"),
    wrong("places-returned", ALL, returned="queries, keys"),
    edited("nothing-returned", ALL, MODEL_ANSWER, (RETURNED, "masked")),
)

RIGHT = {
    "masked-fill": """\
def mask_future(scores):
    n = scores.shape[-1]
    future = torch.ones(n, n, dtype=torch.bool, device=scores.device).triu(diagonal=1)
    return scores.masked_fill(future, -math.inf)
""",
    "lower-triangle-inverted": """\
def mask_future(scores):
    visible = torch.ones_like(scores, dtype=torch.bool).tril()
    return scores.masked_fill(~visible, float("-inf"))
""",
    "where": """\
def mask_future(scores):
    position = torch.arange(scores.shape[-1], device=scores.device)
    return torch.where(position[None, :] > position[:, None], -torch.inf, scores)
""",
    "infinity-added": """\
def mask_future(scores):
    n = scores.size(-1)
    return scores + torch.full((n, n), float("-inf"), device=scores.device).triu(1)
""",
    "infinity-above-zeros-below": """\
def mask_future(scores):
    minus_infinity = torch.full_like(scores, -math.inf)
    return minus_infinity.triu(1) + scores
""",
    "query-by-query": """\
def mask_future(scores):
    masked = torch.full_like(scores, -math.inf)
    for query in range(scores.shape[2]):
        masked[:, :, query, : query + 1] = scores[:, :, query, : query + 1]
    return masked
""",
    "key-by-key": """\
def mask_future(scores):
    columns = []
    for key, column in enumerate(scores.unbind(dim=-1)):
        hidden = torch.full_like(column[..., :key], -torch.inf)
        columns.append(torch.cat([hidden, column[..., key:]], dim=-1))
    return torch.stack(columns, dim=-1)
""",
    "places-kept": """\
def mask_future(scores):
    n = scores.shape[-1]
    i, j = torch.tril_indices(n, n, device=scores.device)
    masked = scores.new_full(scores.shape, -math.inf)
    masked[..., i, j] = scores[..., i, j]
    return masked
""",
    "index-put": """\
def mask_future(scores):
    n = scores.shape[-1]
    places = torch.triu_indices(n, n, 1, device=scores.device)
    flat = (places[0] * n + places[1]).to(scores.device)
    return scores.flatten(2).index_fill(2, flat, -math.inf).view(scores.shape)
""",
    "torch-own": """\
def mask_future(scores):
    mask = nn.Transformer.generate_square_subsequent_mask(scores.shape[-1], device=scores.device, dtype=scores.dtype)
    return scores + mask
""",
    "logarithm-of-zero": """\
def mask_future(scores):
    n = scores.shape[-1]
    return scores + torch.ones(n, n, device=scores.device).tril().log()
""",
    "numpy-mask": """\
import numpy as np


def mask_future(scores):
    visible = torch.from_numpy(np.tri(scores.shape[-1], dtype=bool)).to(scores.device)
    return torch.where(visible, scores, torch.tensor(-math.inf, dtype=scores.dtype, device=scores.device))
""",
}

MASK_FUTURE_RECORD = ValueRecord(
    public=MASK_FUTURE,
    title="Masking the future",
    defines="mask_future",
    parts=(Part("mask-future-check", 2, values),),
    properties=(SEQUENCES_APART, input_matters("kept")),
    first_sizes={"b": 2, "h": 3, "n": 5},
    other_length={"b": 4, "n": 13},
    other_sizes={"b": 4, "h": 7, "n": 6, "magnitude": 512},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
