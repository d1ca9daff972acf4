"""The exercise of topic 05 about detecting which pattern each head follows, if any."""

import random
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from grading.judging.head_claims import EXACT, Mask, decisions, margins, unseen
from grading.judging.judge import values
from grading.judging.mistakes import WRAPPER, misbehaviours
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.topic_05_attention_heatmaps.find_heads import FIND_HEADS

CHECK, UNSEEN = "find-heads-check", "find-heads-unseen"
BOTH = (CHECK, UNSEEN)
FIRST = {"b": 3, "h": 41, "n": 19, "p": 15}
LONGER = {"b": 2, "n": 46}
OTHER = {"b": 5, "h": 14, "n": 21, "p": 8}
ONES = ("b", "h")


def reference(case: Arrays) -> Arrays:
    """Return the index of each head's pattern."""
    heads, _ = decisions(**case)
    return {"heads": heads.astype(np.float64)}


# --- cases --------------------------------------------------------------------------------------

UNITS = 1024  # the weight of a query is divided into these units, exact in every float type
STEPS = 64  # units in which a part of the weight is drawn
PATTERNS = (
    "current", "previous", "early", "narrow", "broad", "dense", "half", "late", "six back", "other", "another",
    "aside", "nowhere", "four or five back", "far back",
)  # fmt: skip
PLACES = ("current", "previous", "early")

# What heads attend to, each with its least and greatest weight, in 64ths; the rest goes to all keys equally.
HEADS: dict[str, tuple[tuple[str, int, int], ...]] = {
    "previous": (("previous", 40, 60),),
    "current": (("current", 40, 60),),
    "current, a little": (("current", 14, 14),),  # little more than chance, which may select the query itself
    "early": (("early", 50, 60),),
    "narrow": (("narrow", 50, 62),),  # broad gets as much weight, but more of it by chance
    "narrow, half": (("narrow", 24, 27),),
    "narrow, not in the first sequence": (("narrow later", 56, 62),),
    "narrow, in the first sequence alone": (("narrow at first", 18, 20),),  # too little over all sequences
    "narrow, as in the first sequence": (("narrow first", 24, 28),),
    "other, and another": (("other", 34, 36), ("another", 24, 25)),
    "another, and other": (("another", 34, 36), ("other", 24, 25)),
    "broad, and narrow": (("broad", 44, 46), ("narrow", 16, 18)),  # narrow has the larger ratio to chance
    "dense": (("dense", 50, 60),),
    "dense, half": (("dense", 36, 38),),
    "dense, a little": (("dense", 8, 12),),  # little more than chance
    "dense, one key": (("one of dense", 46, 58),),
    "half": (("half", 8, 12), ("other half", 56, 60)),  # more than position explains, but not more than chance
    "late, a little": (("late", 15, 16),),  # too small a score
    "six back": (("six back", 54, 64),),
    "always six back": (("offset 6", 40, 60),),  # explained by position
    "always five or six back": (("offset 5", 31, 32), ("offset 6", 31, 32)),
    "always six or seven back": (("offset 6", 31, 32), ("offset 7", 31, 32)),
    "falling": (("falling", 64, 64),),
    "uniform": (),
    "random": (("random", 64, 64),),
}

# Heads near a threshold: what they attend to, the pattern for it, and the least and greatest distance from not counting
# (below 0: from counting). They expose a threshold, a score or a baseline that is slightly wrong.
ENOUGH, NOT_QUITE = (0.006, 0.018), (-0.018, -0.006)
EDGES: dict[str, tuple[tuple[str, str, tuple[float, float]], ...]] = {
    "late, enough": (("late", "late", ENOUGH),),  # by its score; the excess is larger
    "late, not quite": (("late", "late", NOT_QUITE),),
    "early, enough": (("early", "early", ENOUGH),),  # above chance
    "early, not quite": (("early", "early", NOT_QUITE),),
    "dense, enough": (("dense", "dense", ENOUGH),),
    "dense, not quite": (("dense", "dense", NOT_QUITE),),
    "six back, enough": (("six back", "six back", ENOUGH),),  # above what position explains
    # These also attend to the previous position, so the divisor of the mean weights at near and far distances matters.
    "six back, not quite": (("six back", "six back", NOT_QUITE), ("previous", "previous", (-0.13, -0.1))),
    # Early queries alone, for which the rows of a null have other sums than its columns.
    "four or five back, enough": (("four or five back", "four or five back", ENOUGH),),
    "four or five back, not quite": (("four or five back", "four or five back", NOT_QUITE),),
    # So far back that few queries are left for a mean.
    "far back, enough": (("far back", "far back", ENOUGH),),
    "far back, not quite": (("far back", "far back", NOT_QUITE),),
    "narrow, enough in some sequences": (("narrow later", "narrow", ENOUGH),),
    "narrow, not quite in some sequences": (("narrow later", "narrow", NOT_QUITE),),
    # `late` exceeds its baseline by more, but does not count; six back is further above chance, but not above position.
    "dense, behind late": (("dense", "dense", ENOUGH), ("late", "late", NOT_QUITE)),
    "aside, ahead of six back": (("aside", "aside", (0.1, 0.12)), ("six back", "six back", (0.03, 0.05))),
}
ROUNDS = 3  # of moving two parts of a head to their thresholds, each of which moves the other a little


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return heads that follow one pattern, two, or none, and patterns, some of which no head follows.

    Heads and patterns are in random order. Cases in which a head is ambiguous are drawn again.
    """
    case = _draw_once(rng, sizes)
    while decisions(**case)[1].min() < EXACT:
        case = _draw_once(rng, sizes)
    return case


def _draw_once(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    b, h, n, p = (sizes[name] for name in ("b", "h", "n", "p"))
    tables = _tables(rng, b, n)
    names = _shuffled(rng, [*PATTERNS, *(f"more {number}" for number in range(p))][:p])
    while names[0] in ("current", "late", "nowhere"):  # exposes a mistake that looks at the first pattern alone
        names = names[1:] + names[:1]
    tables |= {name: _few(rng, b, n) for name in names if name not in tables}
    kinds = [
        kind
        for kind, parts in (HEADS | EDGES).items()
        if all(part[0] in names for part in parts if part[0] in PATTERNS)
    ]
    heads = []
    for kind in (_shuffled(rng, kinds) * h)[:h]:
        if kind in HEADS:
            parts = [(tables[part], _share(rng, low, high)) for part, low, high in HEADS[kind]]
        else:
            parts = _on_edge(rng, tables, EDGES[kind])
        heads.append(_weights(parts, b, n))
    return {
        "weights": np.stack(heads, axis=1),
        "patterns": np.stack([tables[name] > 0 for name in names]),
        "by_place": np.array([name in PLACES for name in names]),
    }


def _tables(rng: random.Random, b: int, n: int) -> dict[str, NDArray]:
    """Return what heads may attend to, (b, i, j) each: the relative weight of each key; in a pattern, True or False."""
    places = np.arange(n)
    back = np.broadcast_to(places[:, None] - places, (b, n, n))
    falls = [4096]
    for _ in range(n):
        falls.append(max(falls[-1] * 7 // 8, 1))
    narrow, dense = _few(rng, b, n), (_drawn(rng, b, n, n) < _by_sequence(b, 0.4, 0.55)) & (back > 0)
    six_back = (back == 6) & (_drawn(rng, b, n, 1) < _by_sequence(b, 0.9, 0.4))
    now_and_then = _drawn(rng, b, n, 1) < _by_sequence(b, 0.9, 0.6)
    looks_far, far = _drawn(rng, b, n, 1) < 0.3, 2 * places < places[:, None]
    return {
        "current": back == 0,
        "previous": back == 1,
        # In the first sequence, only early queries attend there, for which chance is larger.
        "early": (back > 0) & (places < n // 4) & (places[:, None] < _by_sequence(b, 2 * n // 3, n)),
        "narrow": narrow,
        "narrow later": narrow & (np.arange(b) > 0)[:, None, None],
        "narrow at first": narrow & (np.arange(b) == 0)[:, None, None],
        "narrow first": np.broadcast_to(narrow[:1], (b, n, n)),
        "broad": narrow | ((_drawn(rng, b, n, n) < 0.35) & (back > 0) & narrow.any(axis=2, keepdims=True)),
        "dense": dense,
        "one of dense": dense & (np.cumsum(dense, axis=2) == (dense.sum(axis=2, keepdims=True) + 1) // 2),
        "half": far & looks_far,
        "other half": ~far & ~looks_far & (back > 0) & (places[:, None] > 5),
        "late": _few(rng, b, n) & (places[:, None] >= n * 4 // 5),
        "six back": six_back,
        "aside": _few(rng, b, n) & ~six_back.any(axis=2, keepdims=True),
        "nowhere": np.zeros((b, n, n), dtype=bool),
        "four or five back": ((back == 4) | (back == 5)) & now_and_then & (places[:, None] < n // 2),
        "far back": (back == n - 5) & ((places[:, None] % 2 == 0) | (np.arange(b) == b - 1)[:, None, None]),
        **{f"offset {offset}": back == offset for offset in (5, 6, 7)},
        "falling": np.tril(np.array(falls)[np.maximum(back, 0)], -1),
        "random": np.tril((_drawn(rng, b, n, n) * 8).astype(np.int64) ** 2),
    }


def _few(rng: random.Random, b: int, n: int) -> Mask:
    """Return a pattern of one random earlier key for about two queries of three."""
    keys = np.floor(_drawn(rng, b, n, 1) * np.arange(n)[:, None])
    has_key = _drawn(rng, b, n, 1) < _by_sequence(b, 0.9, 0.45)
    return (np.arange(n) == keys) & has_key & (np.arange(n)[:, None] > 0)


def _by_sequence(b: int, first: float, others: float) -> NDArray[np.float64]:
    """Return probabilities by sequence; the first sequence has another one, so that sequences differ."""
    return np.where(np.arange(b) == 0, first, others)[:, None, None]


def _share(rng: random.Random, low: int, high: int) -> int:
    """Return a random part between two limits, in 64ths, converted to units."""
    return (low + int(rng.random() * (high - low + 1))) * UNITS // STEPS


def _on_edge(
    rng: random.Random, tables: dict[str, NDArray], parts: tuple[tuple[str, str, tuple[float, float]], ...]
) -> list[tuple[NDArray, int]]:
    """Return what a head attends to, with units such that each pattern is at the intended distance from counting."""
    found = [(tables[part], UNITS // 4) for part, _, _ in parts]
    wanted = [low + rng.random() * (high - low) for _, _, (low, high) in parts]
    for _ in range(ROUNDS if len(parts) > 1 else 1):
        for number, (part, pattern, _) in enumerate(parts):
            low, high = 0, UNITS - sum(units for _, units in found) + found[number][1]
            missing = {}
            while high - low > 1:  # more units mean a larger distance
                middle = (low + high) // 2
                found[number] = tables[part], middle
                missing[middle] = wanted[number] - _margin(found, tables, pattern)
                low, high = (low, middle) if missing[middle] <= 0 else (middle, high)
            found[number] = tables[part], min(missing, key=lambda units: abs(missing[units]))
    return found


def _margin(parts: list[tuple[NDArray, int]], tables: dict[str, NDArray], pattern: str) -> float:
    """Return how far a pattern is from not counting, for a head that attends to these parts."""
    b, n, _ = tables[pattern].shape
    head = _weights(parts, b, n)[:, None]  # (b, 1, i, j)
    found, _ = margins(head, tables[pattern][None], np.array([pattern in PLACES]))
    return found.item()


def _weights(parts: list[tuple[NDArray, int]], b: int, n: int) -> NDArray[np.float64]:
    """Return the weights of a head, (b, i, j), in whole units; the remainder goes to the query itself."""
    units = np.zeros((b, n, n), dtype=np.int64)
    everything = np.tril(np.ones((n, n), dtype=np.int64))
    for table, share in parts:
        amounts = table.astype(np.int64)
        units += amounts * share // np.maximum(amounts.sum(axis=2, keepdims=True), 1)
    left = UNITS - units.sum(axis=2, keepdims=True)
    units += everything * left // np.arange(1, n + 1)[:, None]
    units[:, range(n), range(n)] += UNITS - units.sum(axis=2)
    return units / UNITS


def _drawn(rng: random.Random, *shape: int) -> NDArray[np.float64]:
    return np.array([rng.random() for _ in range(int(np.prod(shape)))]).reshape(shape)


def _shuffled(rng: random.Random, names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: rng.random())


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def find_heads(weights, patterns, by_place):
    b, h, n, _ = weights.shape
    places = torch.arange(n, device=weights.device)
    distance = (places[:, None] - places).clamp(min=0)  # (i, j)
    uniform = torch.ones_like(weights[0, 0]).tril() / (places[:, None] + 1)  # (i, j)
    means = [weights.diagonal(-k, dim1=2, dim2=3).mean(dim=(0, 2)) for k in range(n)]
    null = torch.stack(means, dim=1)[:, distance].tril()  # (h, i, j)
    null = null / null.sum(dim=-1, keepdim=True)

    def score(maps, pattern):
        queries = pattern.any(dim=-1).sum()
        mass = (maps * pattern[:, None]).sum(dim=(0, 2, 3))  # (h,)
        return mass / queries

    heads = torch.full((h,), -1, device=weights.device)
    most = weights.new_zeros(h)
    for number, pattern in enumerate(patterns):
        if not pattern.any():
            continue
        found = score(weights, pattern)  # (h,)
        baseline = score(uniform.expand(b, h, n, n), pattern)
        if not by_place[number]:
            baseline = torch.maximum(baseline, score(null.expand(b, h, n, n), pattern))
        excess = found - baseline
        counts = (found >= 0.35) & (excess >= 0.2) & (excess > most)
        heads[counts] = number
        most[counts] = excess[counts]
    return heads
"""

LINES = {
    "start": "    places = torch",
    "uniform": "/ (places[:, None] + 1)",
    "distance": "(places[:, None] - places).clamp(min=0)",
    "means": "weights.diagonal(-k, dim1=2, dim2=3).mean(dim=(0, 2))",
    "rows": "null = null / null.sum(dim=-1, keepdim=True)",
    "queries": "pattern.any(dim=-1).sum()",
    "mass": "(maps * pattern[:, None]).sum(dim=(0, 2, 3))  # (h,)",
    "mean": "return mass / queries",
    "heads": "torch.full((h,), -1, device=weights.device)",
    "most": "weights.new_zeros(h)",
    "empty": "        if not pattern.any():\n            continue\n",
    "found": "score(weights, pattern)",
    "baseline": "score(uniform.expand(b, h, n, n), pattern)",
    "place": "if not by_place[number]:",
    "larger": "torch.maximum(baseline, score(null.expand(b, h, n, n), pattern))",
    "excess": "found - baseline",
    "counts": "(found >= 0.35) & (excess >= 0.2) & (excess > most)",
    "number": "heads[counts] = number",
    "kept": "most[counts] = excess[counts]",
    "end": "    return heads",
}


def wrong(
    name: str, fails: tuple[str, ...] = BOTH, costs: float | None = None, hint: str = "", **lines: str
) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    edits = ((LINES[line], theirs) for line, theirs in lines.items())
    return edited(name, MODEL_ANSWER, *edits, fails=fails, costs=costs, hint=hint)


MILD = 2  # what it costs in each part to miss heads or mix them up, without naming a head that does nothing
CHANCE_OF_ALL = "score(uniform.expand(b, h, n, n), pattern)"

WRONG = (
    wrong("always-a-name", counts="excess > most", most="weights.new_full((h,), -1)"),
    wrong("largest-score-always", baseline="torch.zeros(h)", larger="baseline", counts="excess > most"),
    wrong("score-enough", counts="(found >= 0.35) & (excess > most)", most="weights.new_full((h,), -1)"),
    wrong("excess-enough", counts="(excess >= 0.2) & (excess > most)"),
    wrong("no-chance", baseline="torch.zeros(h)"),
    wrong("null-in-place-of-chance", larger="score(null.expand(b, h, n, n), pattern)"),
    wrong("no-null", larger="baseline"),
    wrong("smaller-baseline", larger="torch.minimum(baseline, score(null.expand(b, h, n, n), pattern))"),
    wrong("baselines-added", larger="baseline + score(null.expand(b, h, n, n), pattern)", costs=MILD),
    wrong("null-for-places-too", place="if True:", costs=MILD),
    wrong("places-inverted", place="if by_place[number]:"),
    wrong(
        "largest-score",
        counts="(found >= 0.35) & (excess >= 0.2) & (found > most)",
        kept="most[counts] = found[counts]",
        costs=MILD,
    ),
    wrong(
        "largest-ratio",
        counts="(found >= 0.35) & (excess >= 0.2) & (found / baseline > most)",
        kept="most[counts] = (found / baseline)[counts]",
        costs=MILD,
    ),
    wrong("first-that-counts", counts="(found >= 0.35) & (excess >= 0.2) & (heads == -1)", costs=MILD),
    wrong("last-that-counts", counts="(found >= 0.35) & (excess >= 0.2)", costs=MILD),
    wrong("thresholds-exchanged", counts="(found >= 0.2) & (excess >= 0.35) & (excess > most)", costs=MILD),
    wrong("maps-averaged", found="score(weights.mean(dim=0, keepdim=True).expand(b, h, n, n), pattern)"),
    wrong(
        "pattern-of-the-first-sequence", start="    patterns = patterns[:, :1].expand_as(patterns)\n    places = torch"
    ),
    wrong(
        "first-sequence-only", start="    weights, patterns, b = weights[:1], patterns[:, :1], 1\n    places = torch"
    ),
    wrong("distance-one-too-large", distance="(places[:, None] - places + 1).clamp(0, n - 1)"),
    wrong("distance-one-too-small", distance="(places[:, None] - places - 1).clamp(min=0)"),
    wrong("over-all-queries", queries="pattern.any(dim=-1).numel()", costs=MILD),
    wrong("divided-by-keys", queries="pattern.sum()", costs=MILD),
    wrong("summed", queries="1"),
    wrong(
        "largest-key-only",
        found="(weights * pattern[:, None]).amax(dim=-1).sum(dim=(0, 2)) / pattern.any(dim=-1).sum()",
        costs=MILD,
    ),
    wrong("zero-for-nothing", heads="torch.zeros(h, dtype=torch.long, device=weights.device)"),
    wrong("counted-from-one", number="heads[counts] = number + 1"),
    wrong("after-the-first-pattern", end="        return heads"),
    wrong("queries-and-keys-exchanged", start="    weights = weights.mT\n    places = torch"),
    wrong("nan-wins", empty="", counts="~(found < 0.35) & ~(excess < 0.2) & ~(excess <= most)"),
    wrong("softmax-again", start="    weights = weights.softmax(dim=-1)\n    places = torch"),
    wrong("nothing-counts", counts="(found >= 0.35) & (excess >= 2) & (excess > most)", hint="softmax-again"),
    wrong(
        "scores-of-0.3",
        counts="(found >= 0.3) & (excess >= 0.2) & (excess > most)",
        costs=MILD,
        hint="another-threshold",
    ),
    wrong(
        "scores-of-0.4",
        counts="(found >= 0.4) & (excess >= 0.2) & (excess > most)",
        costs=MILD,
        hint="another-threshold",
    ),
    wrong(
        "an-excess-of-0.15",
        counts="(found >= 0.35) & (excess >= 0.15) & (excess > most)",
        costs=MILD,
        hint="another-threshold",
    ),
    wrong(
        "an-excess-of-0.25",
        counts="(found >= 0.35) & (excess >= 0.25) & (excess > most)",
        costs=MILD,
        hint="another-threshold",
    ),
    wrong(
        "the-largest-before-the-thresholds",
        most="weights.new_full((h,), -1)",
        counts="excess > most",
        number="heads[counts] = torch.where((found >= 0.35) & (excess >= 0.2), number, -1)[counts]",
        costs=MILD,
    ),
    wrong(
        "ranked-by-chance",
        counts=f"(found >= 0.35) & (excess >= 0.2) & (found - {CHANCE_OF_ALL} > most)",
        kept=f"most[counts] = (found - {CHANCE_OF_ALL})[counts]",
        costs=MILD,
    ),
    wrong("null-not-renormalised", rows="pass", costs=MILD),
    wrong(
        "zeros-of-the-future-counted",
        means="weights.diagonal(-k, dim1=2, dim2=3).sum(dim=(0, 2)) / (b * n)",
        costs=MILD,
        hint="null-not-renormalised",
    ),
    wrong(
        "null-of-the-first-sequence",
        means="weights[:1].diagonal(-k, dim1=2, dim2=3).mean(dim=(0, 2))",
        costs=MILD,
        hint="null-not-renormalised",
    ),
    wrong("chance-of-the-first-sequence", baseline="score(uniform.expand(1, h, n, n), pattern[:1])", costs=MILD),
    wrong("chance-without-oneself", uniform="/ places[:, None].clamp(min=1)", costs=MILD),
    wrong(
        "mean-of-means",
        queries="pattern.any(dim=-1).sum(dim=-1)[:, None]",
        mass="(maps * pattern[:, None]).sum(dim=(2, 3))",
        mean="return (mass / queries).nanmean(dim=0)",
        costs=MILD,
    ),
    wrong("chance-of-a-full-head", uniform="/ n"),
    wrong("diagonal-left-out", start="    weights = weights.tril(-1)\n    places = torch"),
)

SMALLEST = FIRST | dict.fromkeys(ONES, 1)
KNOWN = [(each["b"], each["h"], each["n"], each["n"]) for each in (FIRST, FIRST | LONGER, OTHER, SMALLEST)]
BEHAVIOURS = {each.name: each for each in misbehaviours(MODEL_ANSWER, "find_heads", longer=(LONGER["b"], FIRST["h"]))}

MISBEHAVING = (
    replace(BEHAVIOURS["differs-the-second-time"], fails=BOTH),
    replace(BEHAVIOURS["fits-one-length"], fails=(CHECK,)),
    replace(BEHAVIOURS["changes-its-input"], fails=(UNSEEN,), hint="input-changed"),
    WrongAnswer(
        "fits-known-sizes",
        MODEL_ANSWER
        + WRAPPER.format(
            function="find_heads", change=f"if x.shape not in {KNOWN}: result = each(torch.zeros_like, result)"
        ),
        BOTH,
        hint="other-sizes",
    ),
    wrong("real-numbers", end="    return heads.float()", hint="not-whole-numbers"),
    wrong("small-whole-numbers", end="    return heads.int()", hint="not-whole-numbers"),
    wrong("names", end='    return [f"pattern {head}" for head in heads.tolist()]', hint="not-a-tensor"),
    wrong("a-list", end="    return heads.tolist()", hint="not-a-tensor"),
    wrong("excess-as-well", end="    return heads, most", hint="not-a-tensor"),
    wrong("for-every-sequence", end="    return heads.expand(b, h)", hint="axis-lost-or-added"),
    edited("nothing-returned", MODEL_ANSWER, ("    return heads\n", "    heads\n"), fails=BOTH, hint="not-a-tensor"),
)

HELPERS = """\
def offset_profile(weights):
    return torch.stack([weights.diagonal(-k, -2, -1).mean(dim=(0, 2)) for k in range(weights.shape[-1])], dim=-1)


def position_null(weights):
    profile = offset_profile(weights)
    n = profile.shape[-1]
    null = torch.zeros(len(profile), n, n, dtype=weights.dtype, device=weights.device)
    for i in range(n):
        row = profile[:, : i + 1].flip(-1)
        null[:, i, : i + 1] = row / row.sum(dim=-1, keepdim=True)
    return null


def pattern_score(weights, pattern):
    has_key = pattern.any(dim=-1)  # (b, i)
    mass = (weights * pattern.unsqueeze(1)).sum(dim=-1)  # (b, h, i)
    seen = torch.arange(1, weights.shape[-1] + 1, device=weights.device)
    chance = (pattern.sum(dim=-1) / seen)[has_key].mean()
    return mass.transpose(1, 2)[has_key].mean(dim=0), chance


"""

RIGHT = {
    "from-the-exercises-before": HELPERS
    + """\
def find_heads(weights, patterns, by_place):
    null = position_null(weights).unsqueeze(0).expand_as(weights)
    answers = []
    scores = [(pattern_score(weights, pattern), pattern_score(null, pattern)[0]) for pattern in patterns]
    for head in range(weights.shape[1]):
        best, name = 0.2, -1
        for number, ((score, chance), explained) in enumerate(scores):
            baseline = chance if by_place[number] else max(chance, explained[head])
            if score[head] >= 0.35 and score[head] - baseline >= best:
                best, name = score[head] - baseline, number
        answers.append(name)
    return torch.tensor(answers, device=weights.device)
""",
    "stacked": HELPERS
    + """\
def find_heads(weights, patterns, by_place):
    null = position_null(weights).expand_as(weights)
    excesses = []
    for pattern, place in zip(patterns, by_place):
        score, chance = pattern_score(weights, pattern)
        baseline = torch.where(place, chance, torch.maximum(chance, pattern_score(null, pattern)[0]))
        excess = score - baseline
        excesses.append(torch.where((score >= 0.35) & (excess >= 0.2), excess, 0))  # nan is not large enough
    best, numbers = torch.stack(excesses).max(dim=0)
    return torch.where(best > 0, numbers, -1)
""",
    "einsum": """\
def find_heads(weights, patterns, by_place):
    b, h, n, _ = weights.shape
    masks = patterns.to(weights.dtype)  # (p, b, i, j)
    queries = patterns.any(dim=-1).sum(dim=(1, 2))  # (p,)
    score = torch.einsum("bhij,pbij->ph", weights, masks) / queries[:, None]
    place = torch.arange(n, device=weights.device)
    uniform = (place[:, None] >= place).to(weights.dtype) / (place + 1)[:, None]
    chance = torch.einsum("ij,pbij->p", uniform, masks) / queries
    back = place[:, None] - place
    at = (back == place[:, None, None]).to(weights.dtype)  # (k, i, j)
    profile = torch.einsum("bhij,kij->hk", weights, at) / (b * at.sum(dim=(1, 2)))
    null = torch.einsum("hk,kij->hij", profile, at)
    null = null / null.sum(dim=-1, keepdim=True)
    explained = torch.einsum("hij,pbij->ph", null, masks) / queries[:, None]
    explained = torch.where(by_place[:, None], 0, explained)
    excess = score - torch.maximum(chance[:, None], explained)
    excess = excess.masked_fill(~(score >= 0.35) | ~(excess >= 0.2), -1)
    best = excess.argmax(dim=0)
    return best.masked_fill(excess.amax(dim=0) < 0, -1)
""",
    "query-by-query": """\
def find_heads(weights, patterns, by_place):
    b, h, n, _ = weights.shape
    profile = weights.new_zeros(h, n)
    for i in range(n):
        for j in range(i + 1):
            profile[:, i - j] += weights[:, :, i, j].sum(dim=0) / (b * (n - i + j))
    null = [profile[:, : i + 1].flip(1) for i in range(n)]
    null = [row / row.sum(dim=1, keepdim=True) for row in null]
    heads, most = weights.new_full((h,), -1).long(), weights.new_zeros(h)
    for p in range(len(patterns)):
        score, explained, chance, queries = weights.new_zeros(h), weights.new_zeros(h), 0.0, 0
        for s, i in patterns[p].any(dim=-1).nonzero().tolist():
            keys = patterns[p, s, i].nonzero().flatten()
            score += weights[s, :, i, keys].sum(dim=1)
            explained += null[i][:, keys].sum(dim=1)
            chance += len(keys) / (i + 1)
            queries += 1
        if queries == 0:
            continue
        score, explained, chance = score / queries, explained / queries, chance / queries
        baseline = torch.full((h,), chance) if by_place[p] else explained.clamp(min=chance)
        for head in range(h):
            excess = score[head] - baseline[head]
            if score[head] >= 0.35 and excess >= 0.2 and excess > most[head]:
                heads[head], most[head] = p, excess
    return heads
""",
    "numpy": """\
import numpy as np


def find_heads(weights, patterns, by_place):
    w, masks = weights.cpu().double().numpy(), patterns.cpu().numpy()
    b, h, n, _ = w.shape
    profile = np.stack([np.diagonal(w, -k, 2, 3).mean(axis=(0, 2)) for k in range(n)], axis=1)
    back = np.subtract.outer(np.arange(n), np.arange(n))
    null = np.tril(profile[:, np.maximum(back, 0)])
    null = null / null.sum(axis=-1, keepdims=True)
    heads, most = np.full(h, -1), np.zeros(h)
    for number, mask in enumerate(masks):
        queries = mask.any(axis=-1)
        if not queries.any():
            continue
        score = (w * mask[:, None]).sum(axis=-1).transpose(0, 2, 1)[queries].mean(axis=0)
        chance = (mask.sum(axis=-1) / np.arange(1, n + 1))[queries].mean()
        explained = (null[None] * mask[:, None]).sum(axis=-1).transpose(0, 2, 1)[queries].mean(axis=0)
        excess = score - (chance if by_place[number] else np.maximum(chance, explained))
        better = (score >= 0.35) & (excess >= 0.2) & (excess > most)
        heads[better], most[better] = number, excess[better]
    return torch.from_numpy(heads).to(weights.device)
""",
    "the-largest-first": HELPERS
    + """\
def find_heads(weights, patterns, by_place):
    h = weights.shape[1]
    null = position_null(weights)[None]
    table = []
    for number, pattern in enumerate(patterns):
        if pattern.sum() == 0:
            continue
        score, chance = pattern_score(weights, pattern)
        explained = pattern_score(null, pattern)[0]
        for head in range(h):
            baselines = [chance.item()] + ([] if by_place[number] else [explained[head].item()])
            excess = score[head].item() - max(baselines)
            if score[head] >= 0.35 and excess >= 0.2:
                table.append((excess, head, number))
    heads = [-1] * h
    for excess, head, number in sorted(table):
        heads[head] = number  # the largest excess is the last
    return torch.tensor(heads, device=weights.device)
""",
    "gathered": """\
def find_heads(weights, patterns, by_place):
    b, h, n, _ = weights.shape
    device = weights.device
    places = torch.arange(n, device=device)
    keys = places[:, None] - places  # (i, k): the key that is k before i
    given = weights.gather(3, keys.clamp(min=0).expand(b, h, n, n)) * (keys >= 0)
    profile = given.sum(dim=(0, 2)) / (b * (n - places))  # (h, k)
    null = profile[:, None].expand(h, n, n).gather(2, keys.clamp(min=0).expand(h, n, n)) * (keys >= 0)
    null = F.normalize(null, p=1, dim=-1)
    best, heads = torch.full((h,), 0.2, device=device), torch.full((h,), -1, device=device)
    for number in range(patterns.shape[0]):
        batch, query = patterns[number].any(dim=-1).nonzero(as_tuple=True)
        if len(batch) == 0:
            continue
        wanted = patterns[number, batch, query][:, None]  # (q, 1, j)
        score = (weights[batch, :, query] * wanted).sum(-1).mean(0)
        compared = [(wanted.sum(-1) / (query + 1)[:, None]).mean(0).expand(h)]
        if not by_place[number].item():
            compared.append((null[:, query].transpose(0, 1) * wanted).sum(-1).mean(0))
        excess = score - torch.stack(compared).amax(dim=0)
        better = (excess >= best) & (score >= 0.35)
        heads = torch.where(better, number, heads)
        best = torch.where(better, excess, best)
    return heads
""",
    "as-a-class": HELPERS
    + """\
class Detector:
    def __init__(self, weights):
        self.weights, self.null = weights, position_null(weights).repeat(len(weights), 1, 1, 1)

    def excess(self, pattern, place):
        score, chance = pattern_score(self.weights, pattern)
        explained, _ = pattern_score(self.null, pattern)
        excess = score - (chance if place else torch.stack([chance.expand_as(explained), explained]).amax(0))
        return torch.where((score >= 0.35) & (excess >= 0.2), excess, -math.inf)  # nan is not large enough


@torch.no_grad()
def find_heads(weights, patterns, by_place):
    detector = Detector(weights)
    table = torch.stack([detector.excess(*each) for each in zip(patterns, by_place.tolist())], dim=1)  # (h, p)
    heads = table.argmax(dim=1)
    heads[table.isinf().all(dim=1)] = -1
    return heads
""",
}

FIND_HEADS_RECORD = ValueRecord(
    public=FIND_HEADS,
    title="A detector of heads",
    defines="find_heads",
    parts=(Part(CHECK, 3, values), Part(UNSEEN, 4, unseen)),
    properties=(),
    first_sizes=FIRST,
    other_length=LONGER,
    other_sizes=OTHER,
    ones=ONES,
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
