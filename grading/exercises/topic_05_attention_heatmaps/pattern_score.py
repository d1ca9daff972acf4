"""The exercise of topic 05 about a head's pattern score, its mean weight on the keys of a pattern, and chance."""

import random

import numpy as np
from numpy.typing import NDArray

from grading.exercises.topic_05_attention_heatmaps.offset_profile import (
    FIRST,
    LONGER,
    OTHER,
    aggregate_misbehaviours,
    causal_weights,
)
from grading.judging.head_references import reference_score
from grading.judging.judge import values
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.topic_05_attention_heatmaps.aggregates import ALONE
from transformer_lm.checks.topic_05_attention_heatmaps.pattern_score import PATTERN_SCORE


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return weights, and a pattern that is denser in later sequences; some queries have no key in it.

    Some queries are their own keys. Two queries of each sequence have one key, which no head attends to. In the first
    sequence, a single query has a key; in a batch of four or more, no query of the second sequence has one. The last
    two queries of the last sequence have no key and two keys, which the first head does not attend to.
    """
    b, h, n = (sizes[name] for name in ("b", "h", "n"))
    weights = causal_weights(rng, b, h, n)
    drawn = np.array([rng.random() for _ in range(b * n * n)]).reshape(b, n, n)
    density = np.linspace(0, 0.7, b)[:, None, None]
    pattern = np.tril(drawn < density)
    pattern[:, 0, 0] = np.arange(b) % 2 == 1
    pattern[-1, -2:] = False
    pattern[-1, -1, [0, n - 1]] = True
    for sequence in range(b):
        for query in sorted(range(1, n - 2), key=lambda each: rng.random())[: 2 if sequence else 1]:
            key = int(rng.random() * query)
            pattern[sequence, query] = np.arange(n) == key
            _move(weights[sequence, :, query], key, query)
    if b > 3:
        pattern[1] = False
    for key in (0, n - 1):
        _move(weights[-1, :1, -1], key, 1)
    return {"weights": weights, "pattern": pattern}


def _move(rows: NDArray[np.float64], key: int, other: int) -> None:
    """Move the weight of one key to another in some rows of weights, (h, j)."""
    rows[:, other] += rows[:, key]
    rows[:, key] = 0


def reference(case: Arrays) -> Arrays:
    """Return scores and chance in the batch, then those of the last head in the last sequence."""
    outputs: Arrays = {}
    for end, part in (("", slice(None)), (ALONE, slice(-1, None))):
        score, chance = reference_score(case["weights"][part, part], case["pattern"][part])
        outputs |= {f"score{end}": score, f"chance{end}": np.array([chance])}
    return outputs


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def pattern_score(weights, pattern):
    b, h, n, _ = weights.shape
    keys = pattern[:, None]  # (b, 1, i, j)
    mass = (weights * keys).sum(dim=-1)  # (b, h, i)
    count = pattern.any(dim=-1).sum()
    score = mass.sum(dim=(0, 2)) / count
    visible = torch.arange(1, n + 1, device=weights.device)  # (i,)
    by_chance = pattern.sum(dim=-1) / visible  # (b, i)
    chance = by_chance.sum() / count
    return score, chance
"""

LINES = {
    "keys": "pattern[:, None]  # (b, 1, i, j)",
    "mass": "(weights * keys).sum(dim=-1)",
    "count": "pattern.any(dim=-1).sum()",
    "score": "mass.sum(dim=(0, 2)) / count",
    "visible": "torch.arange(1, n + 1, device=weights.device)",
    "by_chance": "pattern.sum(dim=-1) / visible",
    "chance": "by_chance.sum() / count",
    "returned": "return score, chance",
}


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, MODEL_ANSWER, *((LINES[line], theirs) for line, theirs in lines.items()), hint=hint)


SCORE_MISTAKES = (
    wrong("queries-without-a-key-counted", count="b * n"),
    wrong("queries-without-a-key-counted-in-the-score", score="mass.mean(dim=(0, 2))"),
    wrong("queries-that-read-no-key-left-out", count="(mass > 0).any(dim=1).sum()"),
    wrong(
        "queries-that-read-no-key-left-out-of-the-score",
        score="mass.sum(dim=(0, 2)) / (mass > 0).any(dim=1).sum()",
        hint="queries-that-read-no-key-left-out",
    ),
    wrong("queries-left-out-head-by-head", score="mass.sum(dim=(0, 2)) / (mass > 0).sum(dim=(0, 2))"),
    wrong("queries-counted-by-the-first-head", count="(mass[:, 0] > 0).sum()"),
    wrong(
        "mean-of-means",
        score="(mass.sum(dim=2) / pattern.any(dim=-1).sum(dim=1)[:, None]).nanmean(dim=0)",
        chance="(by_chance.sum(dim=1) / pattern.any(dim=-1).sum(dim=1)).nanmean()",
    ),
    wrong(
        "mean-of-means-in-the-score", score="(mass.sum(dim=2) / pattern.any(dim=-1).sum(dim=1)[:, None]).nanmean(dim=0)"
    ),
    wrong("divided-by-keys", count="pattern.sum()"),
    wrong("mean-over-keys", mass="(weights * keys).sum(dim=-1) / keys.sum(dim=-1).clamp(min=1)"),
    wrong("largest-key-only", mass="(weights * keys).amax(dim=-1)"),
    wrong(
        "hits-counted", mass="keys.expand_as(weights).gather(-1, weights.argmax(dim=-1, keepdim=True))[..., 0] * 1.0"
    ),
    wrong("summed", score="mass.sum(dim=(0, 2))"),
    wrong("keys-in-place-of-queries", keys="pattern.mT[:, None]"),
    wrong("softmax-twice", mass="(weights.softmax(dim=-1) * keys).sum(dim=-1)", hint="softmax-of-weights"),
    wrong("pattern-inverted", keys="~pattern[:, None]"),
    wrong("diagonal-left-out", keys="pattern[:, None].tril(-1)"),
    wrong("maps-averaged-first", mass="(weights.mean(dim=0, keepdim=True) * keys).sum(dim=-1)"),
    wrong("pattern-of-the-first-sequence", keys="pattern[:1, None]"),
    wrong("first-sequence-only", score="mass[0].sum(dim=1) / pattern[0].any(dim=-1).sum()"),
    wrong("queries-of-one-sequence-counted", score="mass.sum(dim=(0, 2)) / pattern[-1].any(dim=-1).sum()"),
    wrong("batch-viewed-as-heads", score="mass.reshape(h, b, n).sum(dim=(1, 2)) / count"),
    wrong("heads-averaged", score="(mass.mean(dim=1).sum() / count).expand(h)"),
    wrong("sequences-kept", score="mass.sum(dim=2) / count"),
    wrong("batch-in-place-of-heads", score="mass.sum(dim=(1, 2)) / count"),
)

CHANCE_MISTAKES = (
    wrong("chance-of-a-full-head", by_chance="pattern.sum(dim=-1) / n"),
    wrong("chance-without-the-query-itself", visible="torch.arange(n, device=weights.device).clamp(min=1)"),
    wrong("chance-with-one-key-too-many", visible="torch.arange(2, n + 2, device=weights.device)"),
    wrong("chance-of-one-key", by_chance="pattern.any(dim=-1) / visible"),
    wrong("chance-of-all-queries", chance="by_chance.mean()"),
    wrong("chance-of-all-pairs", chance="pattern.sum() / (b * visible.sum())"),
    wrong("chance-of-the-queries-counted", chance="pattern.sum() / (pattern.any(dim=-1) * visible).sum()"),
    wrong("chance-of-one-in-n", chance="torch.ones((), device=weights.device) / n"),
    wrong("chance-mean-of-means", chance="(by_chance.sum(dim=1) / pattern.any(dim=-1).sum(dim=1)).nanmean()"),
    wrong("chance-summed", chance="by_chance.sum()"),
    wrong("chance-by-key", by_chance="(pattern / visible).sum(dim=-1)"),
    wrong("exchanged", returned="return chance.expand(h), score[0]"),
    wrong("excess", returned="return score - chance, chance"),
    wrong("ratio", returned="return score / chance, chance"),
)

MISBEHAVING = (
    *aggregate_misbehaviours(MODEL_ANSWER, "pattern_score"),
    wrong("pattern-changed", returned="pattern[:, 0] = False\n    return score, chance", hint="input-changed"),
    wrong("one-score", score="mass.sum() / count", hint="axis-lost-or-added"),
    wrong("score-alone", returned="return score", hint="not-two-values"),
    wrong("nothing-returned", returned="score, chance", hint="not-two-values"),
    wrong("chance-for-each-head", chance="(by_chance.sum() / count).expand(h)"),
    wrong(
        "chance-with-an-axis", chance="by_chance.sum(dim=(0, 1), keepdim=True)[0] / count", hint="chance-for-each-head"
    ),
    wrong("scores-as-a-list", returned="return score.tolist(), chance", hint="not-a-tensor"),
    wrong("chance-in-words", returned="return score, str(chance.item())", hint="not-a-tensor"),
    wrong("heads-forgotten", keys="pattern", hint="shapes-do-not-fit"),
    wrong("subtracts-bools", keys="(1 - pattern)[:, None]", hint="raises"),
)

RIGHT = {
    "selected-queries": """\
def pattern_score(weights, pattern):
    has_key = pattern.any(dim=2)  # (b, i)
    given = (weights * pattern.unsqueeze(1)).sum(dim=3).transpose(1, 2)[has_key]  # (queries, h)
    i = torch.arange(weights.shape[2], device=weights.device)
    expected = (pattern.sum(dim=2) / (i + 1))[has_key]  # (queries,)
    return given.mean(dim=0), expected.mean()
""",
    "einsum": """\
def pattern_score(weights, pattern):
    wanted = pattern.to(weights.dtype)
    n = weights.shape[-1]
    uniform = torch.ones(n, n, dtype=weights.dtype, device=weights.device).tril()
    uniform = uniform / uniform.sum(dim=1, keepdim=True)
    queries = wanted.amax(dim=-1).sum()
    by_chance = torch.einsum("ij,bij->bi", uniform, wanted)
    return torch.einsum("bhij,bij->h", weights, wanted) / queries, by_chance.sum() / queries
""",
    "query-by-query": """\
def pattern_score(weights, pattern):
    b, h, n, _ = weights.shape
    scores, chances = [], []
    for sequence in range(b):
        for query in range(n):
            keys = pattern[sequence, query].nonzero()[:, 0]
            if len(keys):
                scores.append(weights[sequence, :, query, keys].sum(dim=-1))
                chances.append(len(keys) / (query + 1))
    return torch.stack(scores).mean(dim=0), sum(chances) / len(chances)
""",
    "a-uniform-head-more": """\
def pattern_score(weights, pattern):
    b, h, n, _ = weights.shape
    uniform = torch.ones(b, 1, n, n, dtype=weights.dtype, device=weights.device).tril()
    heads = torch.cat([weights, uniform / uniform.sum(dim=-1, keepdim=True)], dim=1)  # (b, h + 1, i, j)
    mass = heads.masked_fill(~pattern[:, None], 0).sum(dim=-1)
    scores = mass.sum(dim=(0, 2)) / pattern.any(dim=-1).sum()
    return scores[:-1], scores[-1]
""",
    "head-by-head": """\
def pattern_score(weights, pattern):
    def mean_on_pattern(maps):  # (b, i, j)
        mass = torch.where(pattern, maps, torch.zeros_like(maps)).sum(-1)
        return mass[pattern.any(-1)].mean()

    n = weights.size(-1)
    visible = torch.arange(1.0, n + 1, device=weights.device)
    uniform = (1 / visible)[None, :, None].expand(len(weights), n, n).to(weights.dtype)
    return torch.stack([mean_on_pattern(weights[:, head]) for head in range(weights.size(1))]), mean_on_pattern(uniform)
""",
    "weighted-means": """\
def pattern_score(weights, pattern):
    counts = pattern.any(dim=-1).sum(dim=-1)  # (b,)
    share = counts / counts.sum()
    mass = (weights * pattern[:, None]).sum(dim=(2, 3))  # (b, h)
    i = torch.arange(pattern.shape[1], device=pattern.device)
    chance = (pattern / (i[:, None] + 1)).sum(dim=(1, 2))  # (b,)
    safe = counts.clamp(min=1)
    return ((mass / safe[:, None]) * share[:, None]).sum(dim=0), (chance / safe * share).sum()
""",
    "not-a-number-for-queries-without-a-key": """\
def pattern_score(weights, pattern):
    none = ~pattern.any(dim=-1)  # (b, i)
    mass = (weights * pattern[:, None]).sum(-1).masked_fill(none[:, None], math.nan)  # (b, h, i)
    chance = pattern.sum(-1) / torch.arange(1, pattern.shape[-1] + 1, device=weights.device)
    return mass.transpose(0, 1).flatten(1).nanmean(dim=1), chance.masked_fill(none, math.nan).nanmean()
""",
    "matrix-products": """\
def pattern_score(weights, pattern):
    b, h, n, _ = weights.shape
    flat = weights.transpose(0, 1).reshape(h, b * n * n)
    wanted = pattern.reshape(-1).to(weights.dtype)
    rows = torch.arange(n, device=weights.device).repeat_interleave(n).repeat(b)
    queries = int(pattern.any(dim=-1).sum())
    return [flat @ wanted / queries, (wanted / (rows + 1)).sum() / queries]
""",
    "places-of-the-pattern": """\
@torch.no_grad()
def pattern_score(weights, pattern):
    sequence, query, key = pattern.nonzero(as_tuple=True)
    queries = len(torch.stack([sequence, query]).unique(dim=1)[0])
    given = weights[sequence, :, query, key]  # (keys, h)
    return given.sum(dim=0) / queries, (1 / (query + 1)).sum() / queries
""",
    "numpy": """\
import numpy as np


def pattern_score(weights, pattern):
    array, wanted = weights.cpu().numpy(), pattern.cpu().numpy()
    has_key = wanted.any(axis=-1)
    mass = np.where(wanted[:, None], array, 0).sum(axis=-1)
    score = [float(mass[:, head][has_key].mean()) for head in range(array.shape[1])]
    uniform = np.tri(array.shape[-1]) / np.arange(1, array.shape[-1] + 1)[:, None]
    chance = (wanted * uniform).sum(axis=-1)[has_key].mean()
    return torch.tensor(score, device=weights.device), chance.astype(np.float32)
""",
}

PATTERN_SCORE_RECORD = ValueRecord(
    public=PATTERN_SCORE,
    title="How closely a head follows a pattern",
    defines="pattern_score",
    parts=(Part("pattern-score-check", 4, values),),
    properties=(),
    first_sizes=FIRST,
    other_length=LONGER,
    other_sizes=OTHER,
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=(*SCORE_MISTAKES, *CHANCE_MISTAKES),
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
