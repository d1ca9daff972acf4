"""The exercise of topic 05 about offset profiles: a head's mean weight for a key at each distance."""

import random
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from grading.judging.head_references import reference_profile
from grading.judging.judge import values
from grading.judging.mistakes import WRAPPER, misbehaviours
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.topic_05_attention_heatmaps.aggregates import ALONE
from transformer_lm.checks.topic_05_attention_heatmaps.offset_profile import OFFSET_PROFILE

SHARES = 64  # units of a query's weight: exact in every float type, and coarse enough for weights of 0
FIRST = {"b": 3, "h": 2, "n": 7}
LONGER = {"b": 5, "n": 13}
OTHER = {"b": 6, "h": 5, "n": 11}


def causal_weights(rng: random.Random, b: int, h: int, n: int) -> NDArray[np.float64]:
    """Return attention weights (b, h, i, j) with random rows, each of which sums to exactly 1 and ends at its query.

    The heads of a sequence alternately prefer near and far keys.
    """
    weights = np.zeros((b, h, n, n))
    for sequence, maps in enumerate(weights):
        prefer = (min, max)[sequence % 2]
        for rows in maps:
            for query in range(n):
                cuts = sorted(int(prefer(rng.random(), rng.random()) * (SHARES + 1)) for _ in range(query))
                rows[query, : query + 1] = np.diff([0, *cuts, SHARES]) / SHARES
    return weights


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return the weights of a batch."""
    return {"weights": causal_weights(rng, sizes["b"], sizes["h"], sizes["n"])}


def reference(case: Arrays) -> Arrays:
    """Return the profiles in the batch, and the profile of the last head in the last sequence."""
    weights = case["weights"]
    return {"profile": reference_profile(weights), f"profile{ALONE}": reference_profile(weights[-1:, -1:])}


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def offset_profile(weights):
    b, h, n, _ = weights.shape
    means = []
    for distance in range(n):
        given = weights.diagonal(-distance, dim1=2, dim2=3)  # (b, h, n - distance)
        means.append(given.mean(dim=(0, 2)))  # (h,)
    return torch.stack(means, dim=1)
"""

DISTANCES = "range(n)"
WEIGHTS = "weights.diagonal("
DIAGONAL = "-distance, dim1"
MEAN = "given.mean(dim=(0, 2))"
RETURNED = "torch.stack(means, dim=1)"


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    ours = {"distances": DISTANCES, "weights": WEIGHTS, "diagonal": DIAGONAL, "mean": MEAN, "returned": RETURNED}
    return edited(name, MODEL_ANSWER, *((ours[line], theirs) for line, theirs in lines.items()), hint=hint)


WRONG = (
    wrong("zeros-counted", mean="given.sum(dim=(0, 2)) / (b * n)"),
    wrong("divided-by-all-pairs", mean="given.sum(dim=(0, 2)) / (b * n * n)"),
    wrong("divided-by-visible-pairs", mean="given.sum(dim=(0, 2)) / (b * n * (n + 1) / 2)"),
    wrong("one-query-too-many", mean="given.sum(dim=(0, 2)) / (b * (n - distance + 1))"),
    wrong("counted-the-wrong-way-round", mean="given.sum(dim=(0, 2)) / (b * (distance + 1))"),
    wrong("summed", mean="given.sum(dim=(0, 2))"),
    wrong("summed-over-queries", mean="given.sum(dim=2).mean(dim=0)"),
    wrong("summed-over-the-batch", mean="given.mean(dim=2).sum(dim=0)"),
    wrong("only-weights-above-zero", mean="given.sum(dim=(0, 2)) / (given > 0).sum(dim=(0, 2)).clamp(min=1)"),
    wrong("rows-and-columns-swapped", diagonal="distance, dim1"),
    wrong("both-directions", mean="torch.cat([given, weights.diagonal(distance, 2, 3)], dim=2).mean(dim=(0, 2))"),
    wrong("starts-at-one", distances="range(1, n)"),
    wrong("one-too-near", diagonal="1 - distance, dim1"),
    wrong("one-too-far", diagonal="-distance - 1, dim1"),
    wrong("backwards", returned=f"{RETURNED}.flip(1)"),
    wrong("softmax-twice", weights="weights.softmax(dim=-1).diagonal(", hint="softmax-of-weights-past-the-diagonal"),
    wrong("made-to-sum-to-one", returned=f"{RETURNED} / {RETURNED}.sum(dim=1, keepdim=True)"),
    wrong("largest", mean="given.amax((0, 2))"),
    wrong("middle", mean="given.transpose(0, 1).flatten(1).median(dim=1).values"),
    wrong("cumulated", returned=f"{RETURNED}.cumsum(dim=1)"),
    wrong("first-sequence-only", weights="weights[:1].diagonal("),
    wrong("last-query-only", mean="given[:, :, -1].mean(dim=0)"),
    wrong("by-key", mean="weights[:, :, :, distance].mean(dim=(0, 2))"),
    wrong("by-query", mean="weights[:, :, distance].mean(dim=(0, 2))"),
    wrong("batch-and-heads-exchanged", mean="given.mean(dim=(1, 2))"),
    wrong("batch-viewed-as-heads", weights="weights.reshape(h, b, n, n).transpose(0, 1).diagonal("),
    wrong("heads-averaged", mean="given.mean(dim=(0, 1, 2))", returned="torch.stack(means)"),
    wrong("sequences-kept", mean="given.mean(dim=2)", returned="torch.stack(means, dim=2)"),
    wrong("distances-first", returned="torch.stack(means)"),
)


def aggregate_misbehaviours(answer: str, function: str) -> tuple[WrongAnswer, ...]:
    """Return misbehaving answers to an exercise on weights (b, h, i, j), whose first numbers are right."""
    hints = {"changes-its-input": "input-changed", "views-its-input": "view-not-contiguous"}
    kept = ("differs-the-second-time", "fits-one-length", *hints)
    found = misbehaviours(answer, function, longer=(LONGER["b"], FIRST["h"]))
    change = "if x.shape[-1] > 17: result = each(torch.zeros_like, result)"
    fits = WrongAnswer(
        "fits-known-sizes", answer + WRAPPER.format(function=function, change=change), hint="other-sizes"
    )
    return (*(replace(each, hint=hints.get(each.name, each.hint)) for each in found if each.name in kept), fits)


MISBEHAVING = (
    *aggregate_misbehaviours(MODEL_ANSWER, "offset_profile"),
    wrong("at-most-thirteen", distances="range(min(n, 13))", hint="other-sizes"),
    wrong("list-of-means", returned="means", hint="not-a-tensor"),
    wrong("one-head-squeezed", returned=f"{RETURNED}.squeeze()", hint="axis-lost-or-added"),
    wrong("squeezed", weights="weights.squeeze().diagonal(", hint="raises"),
    edited("nothing-returned", MODEL_ANSWER, (f"return {RETURNED}", RETURNED), hint="not-a-tensor"),
)

RIGHT = {
    "one-line": """\
def offset_profile(weights):
    return torch.stack([weights.diagonal(-k, 2, 3).mean((0, 2)) for k in range(weights.shape[-1])], -1)
""",
    "batch-first": """\
def offset_profile(weights):
    mean_map = weights.mean(dim=0)  # (h, i, j)
    h, n, _ = mean_map.shape
    profile = torch.empty(h, n, device=weights.device)
    for k in range(n):
        profile[:, k] = mean_map.diagonal(offset=-k, dim1=1, dim2=2).mean(dim=-1)
    return profile
""",
    "pair-by-pair": """\
def offset_profile(weights):
    b, h, n, _ = weights.shape
    sums, counts = torch.zeros(h, n, device=weights.device), torch.zeros(n, device=weights.device)
    for i in range(n):
        for j in range(i + 1):
            sums[:, i - j] += weights[:, :, i, j].sum(dim=0)
            counts[i - j] += b
    return sums / counts
""",
    "masks": """\
def offset_profile(weights):
    b, h, n, _ = weights.shape
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    columns = []
    for k in range(n):
        at_distance = (i - j == k).to(weights.device)  # (i, j)
        columns.append(weights[:, :, at_distance].mean(dim=(0, 2)))
    return torch.stack(columns, dim=-1)
""",
    "one-hot": """\
def offset_profile(weights):
    n = weights.shape[-1]
    places = torch.arange(n, device=weights.device)
    at = (places[:, None] - places)[None] == places[:, None, None]  # (k, i, j)
    at = at.to(weights.dtype)
    return torch.einsum("bhij,kij->hk", weights, at) / (len(weights) * at.sum(dim=(1, 2)))
""",
    "scattered": """\
def offset_profile(weights):
    b, h, n, _ = weights.shape
    i, j = torch.tril_indices(n, n, device=weights.device)
    sums = torch.zeros(h, n, dtype=weights.dtype, device=weights.device)
    sums.index_add_(1, i - j, weights.mean(dim=0)[:, i, j])
    return sums / torch.arange(n, 0, -1, device=weights.device)
""",
    "gathered": """\
def offset_profile(weights):
    b, h, n, _ = weights.shape
    places = torch.arange(n, device=weights.device)
    keys = places[:, None] - places  # (i, k): the key that is k before i
    given = weights.gather(3, keys.clamp(min=0).expand(b, h, n, n)).masked_fill(keys < 0, 0)
    return given.sum(dim=(0, 2)) / (b * (n - places))
""",
    "skewed": """\
def offset_profile(weights):
    b, h, n, _ = weights.shape
    wide = F.pad(weights.flip(-1), (0, n)).flatten(2)  # all rows joined, 2n numbers each
    skewed = wide[:, :, :-n].reshape(b, h, n, 2 * n - 1)  # rows one number shorter: row i moves i places to the right
    total = skewed.sum(dim=(0, 2))[:, n - 1 :]  # (h, n)
    return total / (b * torch.arange(n, 0, -1, device=weights.device))
""",
    "not-a-number-for-hidden": """\
def offset_profile(weights):
    b, h, n, _ = weights.shape
    shifted = torch.full_like(weights, math.nan)
    for i in range(n):
        shifted[:, :, i, : i + 1] = weights[:, :, i, : i + 1].flip(-1)
    return shifted.nanmean(dim=(0, 2))
""",
    "head-by-head-in-numpy": """\
import numpy as np


def offset_profile(weights):
    array = weights.cpu().numpy()
    profile = [[np.mean([np.diag(w, -k) for w in array[:, head]]) for k in range(array.shape[2])]
               for head in range(array.shape[1])]
    return torch.tensor(profile, dtype=weights.dtype, device=weights.device)
""",
    "sequence-by-sequence": """\
@torch.no_grad()
def offset_profile(weights):
    n = weights.shape[-1]
    profiles = []
    for maps in weights:  # (h, i, j)
        profiles.append(torch.stack([torch.diagonal(maps, -k, 1, 2).sum(-1) / (n - k) for k in range(n)], dim=1))
    return sum(profiles) / len(profiles)
""",
}

OFFSET_PROFILE_RECORD = ValueRecord(
    public=OFFSET_PROFILE,
    title="Mean weight at each distance",
    defines="offset_profile",
    parts=(Part("offset-profile-check", 4, values),),
    properties=(),
    first_sizes=FIRST,
    other_length=LONGER,
    other_sizes=OTHER,
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
