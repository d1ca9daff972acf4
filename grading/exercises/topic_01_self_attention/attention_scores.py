"""The exercise of topic 01 about attention scores, one for each query and key."""

import math
import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import (
    loses_a_length_of_one,
    misbehaviours,
    scaling_mistakes,
)
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, dyadic, edited
from transformer_lm.checks.topic_01_self_attention.attention_scores import ATTENTION_SCORES


def draw_scores(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return queries and keys of two different lengths."""
    bound = 2 * sizes.get("magnitude", 1)
    return {
        "queries": dyadic(rng, sizes["b"], sizes["i"], sizes["dh"], bound=bound),
        "keys": dyadic(rng, sizes["b"], sizes["j"], sizes["dh"], bound=bound),
    }


def reference_scores(case: Arrays) -> Arrays:
    """Return the dot products divided by the square root of the width."""
    products = np.einsum("bik,bjk->bij", case["queries"], case["keys"])
    return {"scores": products / math.sqrt(case["keys"].shape[-1])}


SCORES_ANSWER = """\
def attention_scores(queries, keys):
    dh = queries.shape[-1]
    return queries @ keys.transpose(1, 2) / dh**0.5
"""

SCORES_WRONG = (
    *scaling_mistakes(SCORES_ANSWER, "dh"),
    edited("scaled-by-queries", SCORES_ANSWER, ("queries.shape[-1]", "queries.shape[1]"), hint="scaled-by-length"),
    edited("scaled-by-keys", SCORES_ANSWER, ("queries.shape[-1]", "keys.shape[1]"), hint="scaled-by-length"),
    edited("scaled-by-batch", SCORES_ANSWER, ("queries.shape[-1]", "queries.shape[0]")),
    edited(
        "weights-already", SCORES_ANSWER, ("dh**0.5", "dh**0.5).softmax(dim=-1)"), ("return queries", "return (queries")
    ),
    edited(
        "weights-over-queries-already",
        SCORES_ANSWER,
        ("dh**0.5", "dh**0.5).softmax(dim=1)"),
        ("return queries", "return (queries"),
    ),
    edited(
        "cosine",
        SCORES_ANSWER,
        (
            "queries @ keys.transpose(1, 2) / dh**0.5",
            "F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).transpose(1, 2)",
        ),
    ),
    edited("keys-viewed", SCORES_ANSWER, ("keys.transpose(1, 2)", "keys.reshape(keys.shape[0], dh, -1)")),
    edited("negative-distance", SCORES_ANSWER, ("queries @ keys.transpose(1, 2)", "-torch.cdist(queries, keys)")),
    edited("transposed", SCORES_ANSWER, ("queries @ keys.transpose(1, 2)", "keys @ queries.transpose(1, 2)")),
)

SCORES_RIGHT = {
    "einsum": """\
def attention_scores(a, b):
    return torch.einsum("bid,bjd->bij", a, b) / math.sqrt(a.size(-1))
""",
    "bmm": """\
def attention_scores(queries, keys):
    return torch.bmm(queries, keys.permute(0, 2, 1)).div(queries.size(2) ** 0.5)
""",
    "baddbmm": """\
def attention_scores(queries, keys):
    b, i, dh = queries.shape
    return torch.baddbmm(queries.new_zeros(b, i, keys.shape[1]), queries, keys.mT, alpha=dh**-0.5)
""",
    "scaled-queries": """\
def attention_scores(queries, keys):
    queries = queries / math.sqrt(queries.shape[-1])
    return queries @ keys.mT
""",
    "loop": """\
def attention_scores(queries, keys):
    rows = [(queries[:, i, None] * keys).sum(-1) for i in range(queries.shape[1])]
    return torch.stack(rows, dim=1) / math.sqrt(keys.shape[-1])
""",
    "flattened-loop-over-batch": """\
def attention_scores(queries, keys):
    return torch.stack([q.mm(k.t()) for q, k in zip(queries, keys)]) * keys.size(2) ** -0.5
""",
    "tensordot": """\
def attention_scores(queries, keys):
    products = torch.tensordot(queries, keys, dims=([2], [2]))  # (b, i, b, j)
    return torch.diagonal(products, dim1=0, dim2=2).permute(2, 0, 1) / keys.shape[-1] ** 0.5
""",
    "float64": """\
def attention_scores(queries, keys):
    return queries.double() @ keys.double().transpose(-2, -1) / math.sqrt(keys.shape[-1])
""",
}

SCORES_MISBEHAVING = (
    *misbehaviours(SCORES_ANSWER, "attention_scores", longer=(3, 13)),
    loses_a_length_of_one(SCORES_ANSWER, "attention_scores"),
    edited(
        "ready-made",
        SCORES_ANSWER,
        (
            "return queries @ keys.transpose(1, 2) / dh**0.5",
            "one_hot = torch.eye(keys.shape[1]).expand(len(keys), -1, -1)\n"
            "    return F.scaled_dot_product_attention(queries, keys, one_hot).log()",
        ),
        hint="ready-made-attention",
    ),
)

ATTENTION_SCORES_RECORD = ValueRecord(
    public=ATTENTION_SCORES,
    title="Attention scores",
    defines="attention_scores",
    parts=(Part("attention-scores-check", 2, values),),
    properties=(SEQUENCES_APART, input_matters("scores")),
    first_sizes={"b": 2, "i": 5, "j": 7, "dh": 11},
    other_length={"b": 3, "i": 13, "j": 17},
    other_sizes={"b": 6, "i": 10, "j": 13, "dh": 3, "magnitude": 4},
    ones=("i", "j"),
    draw=draw_scores,
    reference=reference_scores,
    model_answer=SCORES_ANSWER,
    wrong=SCORES_WRONG,
    misbehaving=SCORES_MISBEHAVING,
    right=SCORES_RIGHT,
)
