"""The exercise of topic 05 about a head's position-only baseline, whose weights depend on distance alone."""

import random

import numpy as np

from grading.exercises.topic_05_attention_heatmaps.attention_maps import nothing_ahead
from grading.exercises.topic_05_attention_heatmaps.offset_profile import (
    FIRST,
    LONGER,
    OTHER,
    aggregate_misbehaviours,
    causal_weights,
)
from grading.judging.head_references import reference_null
from grading.judging.judge import values
from grading.judging.properties import rows_sum_to_one
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.topic_05_attention_heatmaps.aggregates import ALONE
from transformer_lm.checks.topic_05_attention_heatmaps.position_null import POSITION_NULL


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return the weights of a batch; every second query, but not the last, gives all its weight to itself.

    So no row of the profile's weights has a small sum, and a guard against division by 0, such as 1e-6, has little
    effect.
    """
    n = sizes["n"]
    weights = causal_weights(rng, sizes["b"], sizes["h"], n)
    weights[:, :, -2::-2] = np.eye(n)[-2::-2]
    return {"weights": weights}


def reference(case: Arrays) -> Arrays:
    """Return the baselines of the heads in the batch, and that of the last head in the last sequence."""
    return {"null": reference_null(case["weights"]), f"null{ALONE}": reference_null(case["weights"][-1:, -1:])}


NOTHING_AHEAD = nothing_ahead(*POSITION_NULL.causal)

# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def position_null(weights):
    b, h, n, _ = weights.shape
    means = [weights.diagonal(-k, dim1=2, dim2=3).mean(dim=(0, 2)) for k in range(n)]
    profile = torch.stack(means, dim=1)  # (h, n)
    places = torch.arange(n, device=weights.device)
    distance = places[:, None] - places  # (i, j)
    null = profile[:, distance.clamp(min=0)].tril()  # (h, i, j)
    return null / null.sum(dim=-1, keepdim=True)
"""

LINES = {
    "means": "weights.diagonal(-k, dim1=2, dim2=3).mean(dim=(0, 2))",
    "profile": "torch.stack(means, dim=1)",
    "distance": "places[:, None] - places",
    "null": "profile[:, distance.clamp(min=0)].tril()",
    "returned": "null / null.sum(dim=-1, keepdim=True)",
}
EACH_ALONE = "torch.stack([weights.diagonal(-k, dim1=2, dim2=3).mean(dim=2) for k in range(n)], dim=2)"


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, MODEL_ANSWER, *((LINES[line], theirs) for line, theirs in lines.items()), hint=hint)


ROW_MISTAKES = (
    wrong("not-renormalised", returned="null"),
    wrong("profile-renormalised", returned="null / profile.sum(dim=1)[:, None, None]"),
    wrong("columns-renormalised", returned="null / null.sum(dim=-2, keepdim=True)"),
    wrong("maps-renormalised", returned="null / null.sum(dim=(-2, -1), keepdim=True)"),
    wrong("divided-by-the-largest", returned="null / null.amax(dim=-1, keepdim=True)"),
    wrong("divided-by-visible-keys", returned="null / (places[:, None] + 1)"),
    wrong("softmax", returned="null.softmax(dim=-1)"),
    wrong("masked-softmax", returned="null.masked_fill(distance < 0, -math.inf).softmax(dim=-1)"),
    wrong("rest-on-the-query-itself", returned="null + torch.diag_embed(1 - null.sum(dim=-1))"),
    wrong(
        "rest-shared-equally",
        returned="null + ((1 - null.sum(dim=-1, keepdim=True)) / (places[:, None] + 1)).expand_as(null).tril()",
    ),
)

FUTURE_MISTAKES = (
    wrong("with-the-future", null="profile[:, distance.clamp(min=0)]"),
    wrong("mirrored", null="profile[:, distance.abs()]"),
    wrong("wraps-around", null="profile[:, distance]"),
    wrong(
        "cut-after-normalising",
        null="profile[:, distance.abs()]",
        returned="(null / null.sum(dim=-1, keepdim=True)).tril()",
    ),
    wrong("transposed", returned="(null / null.sum(dim=-1, keepdim=True)).mT"),
    wrong("transposed-before-normalising", null="profile[:, distance.clamp(min=0)].tril().mT"),
)

PROFILE_MISTAKES = (
    wrong("zeros-counted", means="weights.diagonal(-k, dim1=2, dim2=3).sum(dim=(0, 2)) / (b * n)"),
    wrong("backwards", null="profile.flip(1)[:, distance.clamp(min=0)].tril()"),
    wrong("one-too-far", null="profile[:, (distance + 1).clamp(0, n - 1)].tril()"),
    wrong("one-too-near", null="profile[:, (distance - 1).clamp(min=0)].tril()"),
    wrong("by-key", null="weights.mean(dim=(0, 2))[:, None].expand(h, n, n).tril()"),
    wrong("mean-map", null="weights.mean(dim=0)"),
    wrong("uniform", null="torch.ones_like(weights[0]).tril()"),
    wrong("last-query-only", means="weights.diagonal(-k, dim1=2, dim2=3)[:, :, -1].mean(dim=0)"),
    wrong("largest", means="weights.diagonal(-k, dim1=2, dim2=3).amax(dim=(0, 2))"),
    wrong(
        "softmax-twice",
        means="weights.softmax(dim=-1).diagonal(-k, dim1=2, dim2=3).mean(dim=(0, 2))",
        hint="softmax-of-weights",
    ),
    wrong(
        "itself-left-out",
        null="profile[:, distance.clamp(min=0)].tril(-1)",
        returned="null / null.sum(dim=-1, keepdim=True).clamp(min=1e-9)",
    ),
)

BATCH_MISTAKES = (
    wrong("first-sequence-only", means="weights[:1].diagonal(-k, dim1=2, dim2=3).mean(dim=(0, 2))"),
    wrong("sequences-kept", profile=EACH_ALONE, null="profile[:, :, distance.clamp(min=0)].tril()"),
    wrong(
        "nulls-averaged",
        profile=EACH_ALONE,
        null="profile[:, :, distance.clamp(min=0)].tril()",
        returned="(null / null.sum(dim=-1, keepdim=True)).mean(dim=0)",
    ),
    wrong("heads-averaged", profile="torch.stack(means, dim=1).mean(dim=0).expand(h, n)"),
    wrong(
        "one-for-all-heads",
        profile="torch.stack(means, dim=1).mean(dim=0)",
        null="profile[distance.clamp(min=0)].tril()",
    ),
    wrong("batch-and-heads-exchanged", means="weights.diagonal(-k, dim1=2, dim2=3).mean(dim=(1, 2))"),
    wrong("batch-viewed-as-heads", means="weights.reshape(h, b, n, n).diagonal(-k, dim1=2, dim2=3).mean(dim=(1, 2))"),
    wrong("profile-returned", returned="profile"),
)

MISBEHAVING = (
    *aggregate_misbehaviours(MODEL_ANSWER, "position_null"),
    wrong("fixed-length", null="profile[:, distance.clamp(0, 6)].tril()", hint="other-length"),
    wrong("at-most-thirteen", null="profile[:, distance.clamp(0, 12)].tril()", hint="other-sizes"),
    wrong(
        "future-a-little", returned="(null + 1e-8) / (null + 1e-8).sum(dim=-1, keepdim=True)", hint="future-has-weight"
    ),
    wrong("profile-of-floats", null="profile[:, distance.clamp(min=0) * 1.0].tril()", hint="raises"),
    edited("nothing-returned", MODEL_ANSWER, (f"return {LINES['returned']}", LINES["returned"]), hint="not-a-tensor"),
    wrong("list-of-heads", returned="list(null / null.sum(dim=-1, keepdim=True))", hint="not-a-tensor"),
)

RIGHT = {
    "on-a-function-of-its-own": """\
def profile_of(weights):
    return torch.stack([weights.diagonal(-k, 2, 3).mean((0, 2)) for k in range(weights.shape[-1])], dim=-1)


def position_null(weights):
    profile = profile_of(weights)
    i = torch.arange(profile.shape[1], device=weights.device)
    null = torch.where(i[:, None] >= i, profile[:, (i[:, None] - i).abs()], 0)
    return F.normalize(null, p=1, dim=-1)
""",
    "query-by-query": """\
def position_null(weights):
    b, h, n, _ = weights.shape
    mean_map = weights.mean(dim=0)
    profile = torch.stack([mean_map.diagonal(-k, 1, 2).mean(dim=1) for k in range(n)], dim=1)
    null = torch.zeros_like(mean_map)
    for i in range(n):
        row = profile[:, : i + 1].flip(1)
        null[:, i, : i + 1] = row / row.sum(dim=1, keepdim=True)
    return null
""",
    "over-the-mean-map": """\
def position_null(weights):
    null = weights.mean(dim=0)  # (h, i, j): nothing is in the future, and each diagonal is filled with its mean
    for k in range(null.shape[-1]):
        null.diagonal(-k, 1, 2)[:] = null.diagonal(-k, 1, 2).mean(dim=1, keepdim=True)
    return null / null.sum(dim=-1, keepdim=True)
""",
    "diagonals-filled": """\
def position_null(weights):
    mean_map = weights.mean(dim=0)  # (h, i, j)
    null = torch.zeros_like(mean_map)
    for k in range(mean_map.shape[-1]):
        null.diagonal(-k, 1, 2)[:] = mean_map.diagonal(-k, 1, 2).mean(dim=1, keepdim=True)
    return null / null.sum(dim=2, keepdim=True)
""",
    "sum-of-diagonals": """\
def position_null(weights):
    n = weights.shape[-1]
    null = 0
    for k in range(n):
        mean = weights.diagonal(-k, 2, 3).mean(dim=(0, 2))  # (h,)
        null = null + torch.diag(torch.ones(n - k, device=weights.device), -k) * mean[:, None, None]
    return null / null.sum(-1)[..., None]
""",
    "pair-by-pair": """\
def position_null(weights):
    b, h, n, _ = weights.shape
    sums, counts = [0.0] * n, [0] * n
    for i in range(n):
        for j in range(i + 1):
            sums[i - j] = sums[i - j] + weights[:, :, i, j].sum(dim=0)
            counts[i - j] += b
    null = torch.zeros(h, n, n, dtype=weights.dtype, device=weights.device)
    for i in range(n):
        for j in range(i + 1):
            null[:, i, j] = sums[i - j] / counts[i - j]
    return null / null.sum(dim=-1, keepdim=True)
""",
    "masked-means": """\
def position_null(weights):
    n = weights.shape[-1]
    null = torch.zeros(weights.shape[1:], dtype=weights.dtype, device=weights.device)
    i, j = torch.arange(n, device=weights.device).unsqueeze(1), torch.arange(n, device=weights.device)
    for k in range(n):
        null[:, i - j == k] = weights[:, :, i - j == k].mean(dim=(0, 2)).unsqueeze(1)
    return null.div(null.sum(dim=-1, keepdim=True))
""",
    "windows": """\
def position_null(weights):
    b, h, n, _ = weights.shape
    profile = torch.stack([torch.diagonal(weights, -k, 2, 3).sum((0, 2)) / (b * (n - k)) for k in range(n)], dim=1)
    padded = F.pad(profile.flip(1), (0, n - 1))  # (h, 2n - 1): the furthest first, then nothing
    null = padded.unfold(1, n, 1).flip(1)  # (h, i, j): one place further to the right for each query before
    return null / null.sum(dim=-1, keepdim=True)
""",
    "one-hot": """\
def position_null(weights):
    n = weights.shape[-1]
    i = torch.arange(n, device=weights.device)
    at = ((i[:, None] - i)[None] == i[:, None, None]).to(weights.dtype)  # (k, i, j)
    profile = torch.einsum("bhij,kij->hk", weights, at) / (len(weights) * at.sum(dim=(1, 2)))
    null = torch.einsum("hk,kij->hij", profile, at)
    return torch.einsum("hij,hi->hij", null, 1 / null.sum(dim=-1))
""",
    "logarithms": """\
def position_null(weights):
    n = weights.shape[-1]
    i = torch.arange(n, device=weights.device)
    profile = torch.stack([weights.diagonal(-k, 2, 3).mean((0, 2)) for k in i.tolist()], dim=-1)
    scores = profile.log()[:, (i[:, None] - i).clamp(min=0)].masked_fill(i[:, None] < i, -math.inf)
    return scores.softmax(dim=-1)
""",
    "guarded": """\
def position_null(weights):
    mean_map = weights.mean(dim=0)
    null = torch.zeros_like(mean_map)
    for k in range(mean_map.shape[-1]):
        null += torch.diag_embed(mean_map.diagonal(-k, 1, 2).mean(-1, keepdim=True).expand(-1, len(null[0]) - k), -k)
    return null / (null.sum(dim=-1, keepdim=True) + 1e-7)
""",
    "numpy": """\
import numpy as np


def position_null(weights):
    mean_map = weights.cpu().numpy().mean(axis=0)
    h, n, _ = mean_map.shape
    null = np.zeros_like(mean_map)
    for k in range(n):
        places = np.arange(n - k)
        null[:, places + k, places] = mean_map[:, places + k, places].mean(axis=1, keepdims=True)
    return torch.from_numpy(null / null.sum(axis=2, keepdims=True)).to(weights.device)
""",
}

POSITION_NULL_RECORD = ValueRecord(
    public=POSITION_NULL,
    title="What position alone explains",
    defines="position_null",
    parts=(Part("position-null-check", 4, values),),
    properties=(rows_sum_to_one("null"), NOTHING_AHEAD),
    first_sizes=FIRST,
    other_length=LONGER,
    other_sizes=OTHER,
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=(*ROW_MISTAKES, *FUTURE_MISTAKES, *PROFILE_MISTAKES, *BATCH_MISTAKES),
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
