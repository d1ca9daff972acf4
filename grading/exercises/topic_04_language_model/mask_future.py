"""The exercise of topic 04 about masking the future: scores of later keys become -inf."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import misbehaviours
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
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
    indices: str = INDICES,
    copy: str = COPY,
    places: str = PLACES,
    filled: str = INFINITY,
    returned: str = "masked",
    hint: str = "",
) -> WrongAnswer:
    """Return the answer that masks other entries, or with another value."""
    return edited(
        name,
        MODEL_ANSWER,
        (INDICES, indices),
        (COPY, copy),
        (PLACES, places),
        (INFINITY, filled),
        (RETURNED, f"return {returned}"),
        hint=hint,
    )


WRONG = (
    wrong("not-masked", returned="scores.clone()"),
    wrong("hides-diagonal", indices="torch.triu_indices(n, n)"),
    wrong("wrong-triangle", indices="torch.tril_indices(n, n, offset=-1)"),
    wrong("past-and-itself-hidden", indices="torch.tril_indices(n, n)"),
    wrong("one-step-visible", indices="torch.triu_indices(n, n, offset=2)"),
    wrong("next-key-only", indices="(torch.arange(n - 1), torch.arange(1, n))"),
    wrong("last-key-only", places="masked[:, :, :-1, -1]"),
    wrong("all-but-itself-hidden", places="masked[:, :, ~torch.eye(n, dtype=torch.bool)]"),
    wrong("everything-hidden", places="masked[:]"),
    wrong("other-diagonal", places="masked[:, :, queries, n - 1 - keys]", hint="flipped"),
    wrong("upside-down", places="masked[:, :, n - 1 - queries, keys]"),
    wrong("first-head-only", places="masked[:, 0, queries, keys]"),
    wrong("first-sequence-only", places="masked[0, :, queries, keys]"),
    wrong("masked-with-zero", filled="0"),
    wrong("masked-with-minus-one", filled="-1"),
    wrong("masked-with-a-large-number", filled="-1e9"),
    wrong("masked-with-the-smallest-number", filled="torch.finfo(torch.float32).min"),
    wrong("plus-infinity", filled="math.inf"),
    wrong("masked-with-nan", filled="math.nan"),
    wrong("infinity-times-zero", returned="scores + -math.inf * torch.ones(n, n).triu(1)"),
    wrong("zeros-hidden-too", returned="scores.tril().masked_fill(scores.tril() == 0, -math.inf)"),
    wrong("softmax-included", returned="masked.softmax(dim=-1)"),
    wrong("mask-after-softmax", copy="scores.softmax(dim=-1)"),
    wrong("mask-returned", returned="torch.ones(b, h, n, n, dtype=torch.bool).triu(1)"),
    wrong("scores-lost", copy="torch.zeros_like(scores)"),
    wrong("mask-without-batch", returned="torch.full((n, n), -math.inf).triu(1)"),
    wrong("transposed", copy="scores.mT.clone()"),
    wrong("transposed-after", returned="masked.mT"),
    wrong("scaled", copy="scores / n**0.5"),
    wrong("hidden-cut-off", returned="masked[..., :-1]"),
)

BEHAVIOURS = misbehaviours(MODEL_ANSWER, "mask_future", longer=(4, 3))
# The gradient of masking does not need its input, and the number of heads does not depend on the length.
NOT_TRIED = ("changes-its-input", "fits-known-sizes")

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name not in NOT_TRIED),
    wrong("in-place", copy="scores", hint="input-changed"),
    wrong(
        "fills-its-input",
        returned="scores.masked_fill_(torch.ones(n, n).triu(1) == 1, -math.inf)",
        hint="input-changed",
    ),
    wrong("detached", copy="scores.detach().clone()", hint="graph-cut"),
    wrong("first-axes", places="masked[queries, keys]", hint="shapes-do-not-fit"),
    wrong("heads-taken-for-queries", places="masked[:, queries, keys]", hint="shapes-do-not-fit"),
    wrong("fixed-length", indices="torch.triu_indices(5, 5, offset=1)", hint="other-length"),
    wrong("fixed-mask", returned="scores + torch.full((5, 5), -math.inf).triu(1)", hint="other-length"),
    wrong("fits-known-sizes", indices="torch.triu_indices(min(n, 17), min(n, 17), offset=1)", hint="other-sizes"),
    wrong("places-returned", returned="queries, keys", hint="not-scores"),
    edited("nothing-returned", MODEL_ANSWER, (RETURNED, "masked"), hint="not-scores"),
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
