"""The exercise of topic 06 about beam search, which returns the best translation that it finds."""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grading.exercises.topic_06_encoder_decoder.greedy_decode import PERIOD, ROWS, drawn_places, row_of_scores, shuffled
from grading.judging.judge import values
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.topic_06_encoder_decoder.beam_search import (
    BEAM_SEARCH,
    NOTHING,
    SEARCHES,
    SURENESS,
)

FIRST = {"m": 5, "v": 6}
CANDIDATES = 12  # number of sources from which one is chosen for a search
MARGIN = 2.0**-12  # between survivors and others: far more than rounding changes a score

Logs = Callable[[tuple[int, ...]], list[float]]  # log-probabilities of the next token, by the tokens after START
Hypothesis = tuple[float, bool, tuple[int, ...], float, int]


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return a model and a source for each search, such that rounding changes no ranking.

    0, 1 and 2 are words, and so is one more token; START is unlikely. For the first sizes, the case tells wrong
    searches from the right one and from each other.
    """
    m, vocabulary = sizes["m"], sizes["v"] + 3
    while True:
        start, end = shuffled(rng, list(range(3, vocabulary)))[:2]
        words = [token for token in range(vocabulary) if token not in (start, end)]
        table = dyadic(rng, ROWS, vocabulary, bound=0.75)
        table[:, start] -= 4
        table[:, end] += 0.375
        case = {"table": table, "places": drawn_places(rng), "given": np.array([start, end, 5 + int(rng.random() * 2)])}
        drawn = [
            [[words[int(rng.random() * len(words))] for _ in range(m)] for _ in range(CANDIDATES)] for _ in SEARCHES
        ]
        sources = _chosen_sources(case, drawn, OTHER_SEARCHES if sizes == FIRST else ())
        if len(sources) == len(SEARCHES):
            return {"sources": np.array(sources)} | case


def reference(case: Arrays) -> Arrays:
    """Return the tokens and score of every search, computed with lists of hypotheses."""
    end = int(case["given"][1])
    outputs: Arrays = {}
    for source, (name, settings) in zip(case["sources"], SEARCHES.items(), strict=True):
        beams, alpha, max_len = settings(case["table"].shape[1], int(case["given"][2]))
        tokens, score = best_hypothesis(log_probabilities(case, source), end, beams, max_len, alpha)
        outputs[f"{name}_tokens"] = np.array([*tokens, *[NOTHING] * (max_len - len(tokens))], dtype=np.float64)
        outputs[f"{name}_score"] = np.array([score])
    return outputs


def log_probabilities(case: Arrays, source: NDArray[np.int64]) -> Logs:
    """Return the model of a case for one source; the more tokens it has seen, the more confident its prediction."""
    start = int(case["given"][0])

    @functools.cache
    def logs(tokens: tuple[int, ...]) -> list[float]:
        scores = row_of_scores(case, source, [start, *tokens]) * SURENESS[min(len(tokens), len(SURENESS) - 1)]
        return (scores - scores.max() - np.log(np.exp(scores - scores.max()).sum())).tolist()

    return logs


def best_hypothesis(logs: Logs, end: int, beams: int, max_len: int, alpha: float) -> tuple[tuple[int, ...], float]:
    """Return the tokens of the best hypothesis of a beam search, and its score."""
    over: list[tuple[float, tuple[int, ...], float]] = []  # score, tokens, sum of log-probabilities
    unfinished: list[tuple[float, tuple[int, ...], float]] = [(0.0, (), 0.0)]
    for length in range(1, max_len + 1):
        competing = list(over)
        for _, tokens, total in unfinished:
            for token, log in enumerate(logs(tokens)):
                competing.append(((total + log) / length**alpha, (*tokens, token), total + log))
        competing.sort(reverse=True)
        over = [each for each in competing[:beams] if each[1][-1] == end]
        unfinished = [each for each in competing[:beams] if each[1][-1] != end]
        if not unfinished:
            break
    score, tokens, _ = max(over + unfinished)
    return tokens, score


# --- fast wrong searches, which each case must tell apart ----------------------------------------


@dataclass(frozen=True)
class Search:
    """The rules of a search: how it ranks hypotheses, what it does with finished ones, when it stops, what it returns.

    `added` is the number of hypotheses that survive beyond those asked for, and `beams` an upper limit for all
    survivors. `longer` is the number of tokens beyond max_len.
    """

    ranked: str = "by-score"
    kept: str = "competing"
    stops: str = "all-finished"
    returns: str = "best"
    added: int = 0
    beams: int = 99
    longer: int = 0


TOKENS = FIRST["v"] + 3  # size of the first case's vocabulary
RIGHT_SEARCH = Search()
OTHER_SEARCHES = (
    Search(kept="aside"),
    Search(kept="aside", stops="enough-finished"),
    Search(stops="best-finished"),
    Search(ranked="each-on-its-own"),
    Search(returns="best-finished"),
    Search(kept="dropped"),
    Search(kept="best-finished"),
    Search(ranked="by-sum"),
    Search(ranked="by-score-if-finished"),
    Search(stops="one-finished"),
    Search(beams=1),
    Search(beams=TOKENS),
    Search(added=1),
    Search(added=-1),
    Search(ranked="by-the-first"),
    Search(returns="longest"),
    Search(longer=-1),
    Search(longer=1),
)


@dataclass(frozen=True)
class Found:
    """The result of a search, and the smallest difference in rank between a survivor and a dropped hypothesis."""

    tokens: tuple[int, ...]
    score: float
    margin: float


def _chosen_sources(case: Arrays, drawn: list[list[list[int]]], others: tuple[Search, ...]) -> list[list[int]]:
    """Return sources, one for each search, that tell the other searches apart, or an empty list if there are none.

    For each search, several sources were drawn; the one that tells the most searches apart is taken.
    """
    logs = _logs_by_place(case)
    found: list[tuple] = [()] * (1 + len(others))  # by the right search, then by the others
    chosen: list[list[int]] = []
    for name, sources in zip(SEARCHES, drawn, strict=True):
        alike = {each for each in found if found.count(each) > 1}  # a search that already differs need not differ again
        candidates = []
        for source in sources:
            right = _searched(case, logs, source, name)
            if right.margin > MARGIN and any(right.tokens) and (not others or _is_of_use(case, right, name)):
                tokens = [right.tokens] + [
                    _searched(case, logs, source, name, other).tokens if before in alike else ()
                    for before, other in zip(found[1:], others, strict=True)
                ]
                longer = [(*before, now) for before, now in zip(found, tokens, strict=True)]
                candidates.append((len(set(longer)), longer, source))
        if not candidates:
            return []
        _, found, source = max(candidates, key=lambda candidate: candidate[0])
        chosen.append(source)
    return chosen if len(set(found)) == len(found) else []


def _is_of_use(case: Arrays, right: Found, name: str) -> bool:
    """Return whether the first translations are long enough, the very first one ends, and a short one does not end."""
    ends = right.tokens[-1] == int(case["given"][1])
    if name == "short":
        return not ends
    return name not in ("three_beams", "one_beam") or (len(right.tokens) > 2 and (name == "one_beam" or ends))


def _logs_by_place(case: Arrays) -> list[list[list[tuple[float, int]]]]:
    """Return log-probabilities with their tokens, best first, by the number of tokens seen and the row of the table."""
    scores = case["table"] * np.array(SURENESS)[:, None, None]
    scores = scores - scores.max(axis=-1, keepdims=True)
    logs = (scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))).tolist()
    return [[sorted(((log, token) for token, log in enumerate(row)), reverse=True) for row in rows] for rows in logs]


def _searched(case: Arrays, logs: list, source: list[int], name: str, rules: Search = RIGHT_SEARCH) -> Found:
    """Return the result of a search; a hypothesis is a rank, whether it ended, its tokens, their sum and a number."""
    beams, alpha, max_len = SEARCHES[name](case["table"].shape[1], int(case["given"][2]))
    max_len += rules.longer
    width = max(1, min(beams + rules.added, rules.beams))
    start, end, _ = case["given"].tolist()
    of_source, of_target = case["places"].tolist()
    number = sum(of_source[place % PERIOD] * (token + 1) for place, token in enumerate(source))
    survivors: list[Hypothesis] = [(0.0, False, (), 0.0, number + of_target[0] * (start + 1))]
    aside: list[Hypothesis] = []
    margin = 1.0
    by_sum, mixed = rules.ranked == "by-sum", rules.ranked == "by-score-if-finished"
    enough = None if mixed else width + 1  # best tokens of a hypothesis; no more of them can survive
    for length in range(1, max_len + 1):
        finished = [each for each in survivors if each[1]]  # best first
        candidates = finished[: {"competing": None, "best-finished": 1}.get(rules.kept, 0)]
        growing = [each for each in survivors if not each[1]]
        divisor = length**alpha
        for _, _, tokens, total, number in growing:
            extended = []
            read = growing[0][4] if rules.ranked == "by-the-first" else number
            for log, token in logs[min(length, len(logs)) - 1][read % ROWS][:enough]:
                rank, ends = total + log, token == end
                if not by_sum and (ends or not mixed):
                    rank /= divisor
                following = number + of_target[length % PERIOD] * (token + 1)
                extended.append((rank, ends, (*tokens, token), total + log, following))
            candidates += [max(extended)] if rules.ranked == "each-on-its-own" and tokens else extended
        candidates.sort(reverse=True)
        if len(candidates) > width:
            margin = min(margin, candidates[width - 1][0] - candidates[width][0])
        survivors = candidates[:width]
        over = [each for each in survivors if each[1]]
        if rules.kept == "aside":
            aside += over
            survivors = [each for each in survivors if not each[1]]
        if (
            all(each[1] for each in survivors)
            or (rules.stops == "one-finished" and over)
            or (rules.stops == "best-finished" and survivors[0][1])
            or (rules.stops == "enough-finished" and len(aside) >= width)
        ):
            break
    final = sorted(survivors + aside, reverse=True)
    if rules.returns == "best-finished":
        final = [each for each in final if each[1]] or final
    if rules.returns == "longest":
        final = sorted(final, key=lambda each: -len(each[2]))
    if len(final) > 1:
        margin = min(margin, final[0][0] - final[1][0])
    _, _, tokens, total, _ = final[0] if not by_sum else max(final, key=lambda each: each[3] / len(each[2]) ** alpha)
    return Found(tokens, total / len(tokens) ** alpha, margin)


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def beam_search(model, source, start, end, beams, max_len, alpha):
    def score(hypothesis):
        tokens, total = hypothesis
        return total / len(tokens) ** alpha

    survivors = [([], 0.0)]  # tokens, and the sum of their log-probabilities
    for _ in range(max_len):
        finished = [each for each in survivors if each[0][-1:] == [end]]
        growing = [each for each in survivors if each[0][-1:] != [end]]
        if not growing:
            break
        target = torch.tensor([[start, *tokens] for tokens, _ in growing], device=source.device)  # (k, n)
        scores = model(source.expand(len(target), -1), target)[:, -1]  # (k, v)
        candidates = finished
        for (tokens, total), logs in zip(growing, scores.log_softmax(dim=-1).tolist()):
            candidates += [([*tokens, token], total + log) for token, log in enumerate(logs)]
        survivors = sorted(candidates, key=score, reverse=True)[:beams]
    best = survivors[0]
    return torch.tensor(best[0]), score(best)
"""

LINES = {
    "score": "total / len(tokens) ** alpha",
    "begin": "survivors = [([], 0.0)]",
    "steps": "for _ in range(max_len):",
    "finished": "finished = [each for each in survivors if each[0][-1:] == [end]]",
    "growing": "growing = [each for each in survivors if each[0][-1:] != [end]]",
    "read": "[start, *tokens]",
    "scores": "model(source.expand(len(target), -1), target)[:, -1]",
    "kept": "candidates = finished",
    "logs": "scores.log_softmax(dim=-1)",
    "extended": "candidates += [([*tokens, token], total + log) for token, log in enumerate(logs)]",
    "survive": "survivors = sorted(candidates, key=score, reverse=True)[:beams]",
    "best": "best = survivors[0]",
    "tokens": "torch.tensor(best[0])",
    "returned": "score(best)\n",
}


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, MODEL_ANSWER, *((LINES[line], theirs) for line, theirs in lines.items()), hint=hint)


def extended_by(log: str, total: str = "total") -> str:
    """Return the line that extends hypotheses, with another sum of log-probabilities."""
    return f"candidates += [([*tokens, token], {total} + {log}) for token, log in enumerate(logs)]"


ASIDE = "done = []\n    survivors = [([], 0.0)]"
BEST_OF_ALL = "best = max(done + survivors, key=score)"

WRONG = (
    wrong("greedy", survive="survivors = sorted(candidates, key=score, reverse=True)[:1]"),
    wrong("begins-with-copies", begin="survivors = [([], 0.0)] * beams", hint="greedy"),
    wrong("alpha-ignored", score="total"),
    wrong("alpha-taken-for-one", score="total / len(tokens)"),
    wrong("alpha-fixed", score="total / len(tokens) ** 0.7"),
    wrong("alpha-as-a-factor", score="total / len(tokens) * alpha"),
    wrong("multiplied-by-length", score="total * len(tokens) ** alpha"),
    wrong("start-counted", score="total / (1 + len(tokens)) ** alpha"),
    wrong("end-not-counted", score="total / max(1, len(tokens) - (tokens[-1] == end)) ** alpha"),
    wrong("another-penalty", score="total / ((5 + len(tokens)) / 6) ** alpha"),
    wrong("divided-by-max-len", score="total / max_len**alpha"),
    wrong(
        "normalised-at-the-end",
        survive="survivors = sorted(candidates, key=lambda each: each[1], reverse=True)[:beams]",
        best="best = max(survivors, key=score)",
    ),
    wrong(
        "normalised-in-the-result",
        survive="survivors = sorted(candidates, key=lambda each: each[1], reverse=True)[:beams]",
    ),
    wrong(
        "length-of-the-longest",
        survive="survivors = sorted(candidates, key=lambda each: each[1], reverse=True)[:beams]",
        returned="best[1] / max(len(each[0]) for each in survivors) ** alpha\n",
    ),
    wrong("finished-normalised-only", score="total / len(tokens) ** alpha if tokens[-1] == end else total"),
    wrong("scores-summed-on", extended=extended_by("log", "(score((tokens, total)) if tokens else total)")),
    wrong("finished-dropped", kept="candidates = []"),
    wrong("best-finished-kept", kept="candidates = finished[:1]"),
    wrong("finished-extended", finished="finished = []", growing="growing = survivors"),
    wrong("finished-kept-aside", begin=ASIDE, kept="done += finished\n        candidates = []", best=BEST_OF_ALL),
    wrong(
        "finished-keep-their-places",
        begin=ASIDE,
        kept="done += finished\n        candidates = []",
        survive="survivors = sorted(candidates, key=score, reverse=True)[: max(0, beams - len(done))]",
        best=BEST_OF_ALL,
        hint="normalised-at-the-end",
    ),
    wrong(
        "enough-finished-collected",
        begin=ASIDE,
        growing="growing = [each for each in survivors if each[0][-1:] != [end]]\n"
        "        if len(done) + len(finished) >= beams:\n            break",
        kept="done += finished\n        candidates = []",
        best=BEST_OF_ALL,
    ),
    wrong(
        "stops-at-the-first-end",
        growing="growing = [each for each in survivors if each[0][-1:] != [end]]\n"
        "        if finished:\n            break",
    ),
    wrong(
        "stops-when-the-best-has-finished",
        growing="growing = [each for each in survivors if each[0][-1:] != [end]]\n"
        "        if survivors[0] in finished:\n            break",
    ),
    wrong("last-returned", best="best = survivors[-1]"),
    wrong("longest-returned", best="best = max(survivors, key=lambda each: len(each[0]))"),
    wrong("finished-preferred", best="best = ([each for each in survivors if each[0][-1] == end] + survivors)[0]"),
    wrong("start-returned", tokens="torch.tensor([start, *best[0]])"),
    wrong("tokens-in-a-batch", tokens="torch.tensor([best[0]])"),
    wrong("end-left-out", tokens="torch.tensor([token for token in best[0] if token != end], dtype=torch.long)"),
    wrong("probabilities-added", logs="scores.softmax(dim=-1)"),
    wrong(
        "probabilities-multiplied",
        begin="survivors = [([], 1.0)]",
        logs="scores.softmax(dim=-1)",
        extended="candidates += [([*tokens, token], total * log) for token, log in enumerate(logs)]",
    ),
    wrong("no-softmax", logs="scores"),
    wrong("softmax-over-hypotheses", logs="scores.log_softmax(dim=0)"),
    wrong("softmax-over-everything", logs="scores.flatten().log_softmax(dim=0).view(scores.shape)"),
    wrong("logs-to-the-base-two", logs="(scores.log_softmax(dim=-1) / math.log(2))"),
    wrong("last-log-only", extended=extended_by("log", "0")),
    wrong("end-costs-nothing", extended=extended_by("(0.0 if token == end else log)")),
    wrong(
        "each-on-its-own",
        extended="extended = [([*tokens, token], total + log) for token, log in enumerate(logs)]\n"
        "            candidates += [max(extended, key=score)] if tokens else extended",
    ),
    wrong("worst-survive", survive="survivors = sorted(candidates, key=score)[:beams]"),
    wrong(
        "worst-survive-best-returned",
        survive="survivors = sorted(candidates, key=score)[:beams]",
        best="best = max(survivors, key=score)",
    ),
    wrong("one-beam-too-many", survive="survivors = sorted(candidates, key=score, reverse=True)[: beams + 1]"),
    wrong("one-beam-too-few", survive="survivors = sorted(candidates, key=score, reverse=True)[: max(1, beams - 1)]"),
    wrong(
        "no-more-than-tokens",
        survive="survivors = sorted(candidates, key=score, reverse=True)[: min(beams, scores.shape[-1])]",
    ),
    wrong("one-token-too-few", steps="for _ in range(max_len - 1):", hint="one-too-few"),
    wrong("one-token-too-many", steps="for _ in range(max_len + 1):", hint="one-too-many"),
    wrong("sum-returned", returned="best[1]\n"),
    wrong("probability-returned", returned="math.exp(score(best))\n"),
    wrong("sign-flipped", returned="-score(best)\n"),
    wrong("score-of-the-last", returned="score(survivors[-1])\n"),
    wrong("first-position", scores="model(source.expand(len(target), -1), target)[:, 0]"),
    wrong("last-token-read-alone", read="[start, *tokens][-1:]"),
    wrong("start-not-read", read="(tokens or [start])"),
    wrong("begins-with-end", read="[end, *tokens]"),
    wrong("begins-with-zero", read="[0, *tokens]"),
    wrong("exchanged", scores="model(target, source.expand(len(target), -1))[:, -1]"),
    wrong("source-not-read", scores="model(target, target)[:, -1]"),
    wrong("scores-of-the-first-hypothesis", logs="scores[:1].expand(scores.shape).log_softmax(dim=-1)"),
)

COUNTED = """

searched, calls = beam_search, []


def beam_search(model, source, start, end, beams, max_len, alpha):
    calls.append(source.shape[1])
    {change}
    return searched(model, source, start, end, beams, max_len, alpha)
"""


def remembering(name: str, change: str, hint: str = "") -> WrongAnswer:
    """Return the answer that remembers its first call and then does something else."""
    return WrongAnswer(name, MODEL_ANSWER + COUNTED.format(change=change), hint=hint)


MISBEHAVING = (
    remembering(
        "differs-the-second-time", f"beams = beams if len(calls) <= {len(SEARCHES)} else 1", hint="called-again"
    ),
    remembering("fits-one-length", "source = source[:, :5]", hint="other-length"),
    remembering("fits-known-sizes", "source = source[:, :17]", hint="other-sizes"),
    edited("source-changed", MODEL_ANSWER, ("    best =", "    source += 1\n    best ="), hint="input-changed"),
    wrong("source-not-repeated", scores="model(source, target)[:, -1]", hint="raises"),
    wrong("never-stops", steps="while True:", growing="growing = survivors", kept="candidates = []", hint="raises"),
    wrong("tokens-of-floats", tokens="torch.tensor(best[0]).float()", hint="tokens-not-whole"),
    wrong("score-in-a-list", returned="[score(best)]\n", hint="score-not-a-number"),
    wrong(
        "scores-of-all-survivors",
        returned="torch.tensor([score(each) for each in survivors])\n",
        hint="score-not-a-number",
    ),
    wrong("list-of-tokens", tokens="best[0]", hint="not-a-tensor"),
    edited("tokens-alone", MODEL_ANSWER, (", score(best)\n", "\n"), hint="not-two-values"),
    edited("nothing-returned", MODEL_ANSWER, ("return torch", "torch"), hint="not-two-values"),
    edited(
        "more-beams-than-tokens",
        MODEL_ANSWER,
        (
            LINES["survive"],
            "places = torch.tensor([score(each) for each in candidates]).topk(beams).indices\n"
            "        survivors = [candidates[place] for place in places]",
        ),
        hint="raises",
    ),
)

RIGHT = {
    "hypothesis-by-hypothesis": """\
@torch.no_grad()
def beam_search(model, source, start, end, beams, max_len, alpha):
    beam = [(0.0, 0.0, [start])]  # score, sum, tokens
    for length in range(1, max_len + 1):
        everything = []
        for score, total, tokens in beam:
            if len(tokens) > 1 and tokens[-1] == end:
                everything.append((score, total, tokens))
                continue
            logits = model(source, torch.tensor([tokens], device=source.device))[0, -1]
            for token, log in enumerate(F.log_softmax(logits, dim=0)):
                total_now = total + log.item()
                everything.append((total_now / length**alpha, total_now, tokens + [token]))
        everything.sort(key=lambda each: each[0], reverse=True)
        beam = everything[:beams]
        if all(tokens[-1] == end for _, _, tokens in beam):
            break
    score, _, tokens = beam[0]
    return torch.tensor(tokens[1:]), score
""",
    "best-tokens-of-each": """\
def beam_search(model, source, start, end, beams, max_len, alpha):
    beam = [((), 0.0)]
    value = lambda each: each[1] / max(1, len(each[0])) ** alpha
    for _ in range(max_len):
        candidates = []
        for tokens, total in beam:
            if tokens and tokens[-1] == end:
                candidates.append((tokens, total))
            else:
                target = torch.tensor([[start, *tokens]], device=source.device)
                logs = model(source, target)[0, -1].log_softmax(-1)
                best = logs.topk(min(beams, len(logs)))  # the others cannot survive
                for log, token in zip(best.values.tolist(), best.indices.tolist()):
                    candidates.append(((*tokens, token), total + log))
        beam = sorted(candidates, key=value)[-beams:]
    winner = max(beam, key=value)
    return torch.tensor(winner[0]), torch.tensor(value(winner))
""",
    "tensors": """\
def beam_search(model, source, start, end, beams, max_len, alpha):
    tokens = torch.full((1, 1), start, device=source.device)  # (k, n)
    totals, lengths = torch.zeros(1, device=source.device), torch.zeros(1, device=source.device)
    over = torch.zeros(1, dtype=torch.bool, device=source.device)
    for _ in range(max_len):
        logs = model(source.repeat(len(tokens), 1), tokens)[:, -1].log_softmax(dim=-1)  # (k, v)
        stays = torch.full_like(logs, -math.inf)
        stays[:, end] = 0.0  # END again, at no cost
        sums = totals[:, None] + torch.where(over[:, None], stays, logs)
        grown = (lengths + ~over)[:, None].expand_as(sums)
        scores = (sums / grown**alpha).flatten()
        chosen = scores.topk(min(beams, len(scores))).indices
        chosen = chosen[scores[chosen] > -math.inf]
        rows, following = chosen // logs.shape[1], chosen % logs.shape[1]
        tokens = torch.cat([tokens[rows], following[:, None]], dim=1)
        totals, lengths = sums.flatten()[chosen], grown.flatten()[chosen]
        over = following == end
        if over.all():
            break
    length = int(lengths[0])
    return tokens[0, 1 : length + 1], (totals / lengths**alpha)[0]
""",
    "always-as-many-rows": """\
def beam_search(model, source, start, end, beams, max_len, alpha):
    sources = source.expand(beams, -1)
    tokens = torch.full((beams, 1), start, device=source.device)
    totals = torch.tensor([0.0] + [-math.inf] * (beams - 1), device=source.device)  # one hypothesis, the rest is none
    lengths = torch.zeros(beams, device=source.device)
    over = torch.zeros(beams, dtype=torch.bool, device=source.device)
    for _ in range(max_len):
        logs = model(sources, tokens)[:, -1].log_softmax(dim=-1)
        v = logs.shape[-1]
        logs = logs.masked_fill(over[:, None], -math.inf)
        logs[over, end] = 0.0
        sums = totals[:, None] + logs
        lengths = torch.where(over, lengths, lengths + 1)
        ranks = sums / lengths[:, None] ** alpha
        order = ranks.reshape(-1).argsort(descending=True)[:beams]
        rows = torch.div(order, v, rounding_mode="floor")
        tokens = torch.cat([tokens[rows], (order % v)[:, None]], dim=1)
        totals, lengths = sums.reshape(-1)[order], lengths[rows]
        over = tokens[:, -1] == end
        if (over | totals.isinf()).all():
            break
    scores = totals / lengths**alpha
    best = scores.argmax()
    return tokens[best, 1 : 1 + lengths[best].long()], scores[best]
""",
    "class-of-hypotheses": """\
from dataclasses import dataclass


@dataclass
class Hypothesis:
    tokens: list
    logs: list

    def score(self, alpha):
        return sum(self.logs) / len(self.tokens) ** alpha

    def is_over(self, end):
        return bool(self.tokens) and self.tokens[-1] == end


def beam_search(model, source, start, end, beams, max_len, alpha):
    beam = [Hypothesis([], [])]
    while True:
        going_on = [each for each in beam if not each.is_over(end) and len(each.tokens) < max_len]
        if not going_on:
            best = max(beam, key=lambda each: each.score(alpha))
            return torch.tensor(best.tokens, device=source.device), best.score(alpha)
        target = torch.tensor([[start] + each.tokens for each in going_on], device=source.device)
        with torch.no_grad():
            probabilities = model(torch.cat([source] * len(going_on)), target)[:, -1, :].softmax(dim=-1)
        pool = [each for each in beam if each.is_over(end)]
        for each, row in zip(going_on, probabilities):
            for token in range(len(row)):
                pool.append(Hypothesis(each.tokens + [token], each.logs + [math.log(row[token])]))
        pool.sort(key=lambda each: -each.score(alpha))
        beam = pool[:beams]
""",
    "heap": """\
import heapq


def beam_search(model, source, start, end, beams, max_len, alpha):
    over, alive = [], [(0.0, ())]
    for length in range(1, max_len + 1):
        target = torch.tensor([(start,) + tokens for _, tokens in alive], device=source.device)
        logs = model(source.repeat_interleave(len(alive), dim=0), target).log_softmax(dim=2)[:, -1].detach()
        options = [(score, tokens, None) for score, tokens in over]
        for (total, tokens), row in zip(alive, logs):
            sums = [total + log for log in row.tolist()]
            options += [(each / length**alpha, tokens + (token,), each) for token, each in enumerate(sums)]
        kept = heapq.nlargest(beams, options, key=lambda option: option[0])
        over = [(score, tokens) for score, tokens, _ in kept if tokens[-1] == end]
        alive = [(total, tokens) for _, tokens, total in kept if tokens[-1] != end]
        if not alive:
            break
    score, tokens, _ = kept[0]
    return torch.tensor(tokens), score
""",
    "recursion": """\
def beam_search(model, source, start, end, beams, max_len, alpha):
    def score(tokens, total):
        return total / len(tokens) ** alpha

    def search(beam, left):
        if left == 0 or all(tokens[-1:] == (end,) for tokens in beam):
            return max(beam.items(), key=lambda item: score(*item))
        wider = {}
        for tokens, total in beam.items():
            if tokens[-1:] == (end,):
                wider[tokens] = total
                continue
            logs = model(source, torch.tensor([[start, *tokens]], device=source.device))[0, -1].log_softmax(0)
            wider |= {(*tokens, token): total + log for token, log in enumerate(logs.tolist())}
        ranked = sorted(wider, key=lambda tokens: score(tokens, wider[tokens]), reverse=True)
        return search({tokens: wider[tokens] for tokens in ranked[:beams]}, left - 1)

    tokens, total = search({(): 0.0}, max_len)
    return torch.tensor(tokens), score(tokens, total)
""",
    "numpy": """\
import numpy as np


def beam_search(model, source, start, end, beams, max_len, alpha):
    rows = np.full((1, 1), start)
    totals = np.zeros(1)
    done = []  # score and tokens
    for length in range(1, max_len + 1):
        with torch.no_grad():
            scores = model(source.expand(len(rows), -1), torch.from_numpy(rows).to(source.device))[:, -1]
        logs = scores.log_softmax(dim=-1).double().cpu().numpy()
        sums = totals[:, None] + logs
        ranks = np.concatenate([sums.ravel() / length**alpha, [score for score, _ in done]])
        order = np.argsort(-ranks)[:beams]
        fresh = order[order < sums.size]
        kept = [pair for place, pair in enumerate(done, start=sums.size) if place in order]
        grown = np.concatenate([rows[fresh // logs.shape[1]], (fresh % logs.shape[1])[:, None]], axis=1)
        ended = grown[:, -1] == end
        done = kept + [(rank, row[1:].tolist()) for rank, row in zip(ranks[fresh[ended]], grown[ended])]
        rows, totals = grown[~ended], sums.ravel()[fresh[~ended]]
        if len(rows) == 0:
            break
    done += [(total / length**alpha, row[1:].tolist()) for total, row in zip(totals, rows)]
    score, tokens = max(done, key=lambda pair: pair[0])
    return torch.tensor(tokens), np.float32(score)
""",
    "stops-when-nothing-can-win": """\
def beam_search(model, source, start, end, beams, max_len, alpha):
    beam = [(0.0, 0.0, [start])]  # score, sum, tokens
    for length in range(1, max_len + 1):
        over = [each for each in beam if each[2][-1] == end]
        alive = [each for each in beam if each[2][-1] != end]
        bound = max(total for _, total, _ in alive) / max_len**alpha  # if all that follows were certain
        if over and over[0][0] > bound:
            break
        options = list(over)
        for _, total, tokens in alive:
            logs = model(source, torch.tensor([tokens], device=source.device))[0, -1].log_softmax(dim=0).tolist()
            for token, log in enumerate(logs):
                if token != start:  # too unlikely to be of any use
                    options.append(((total + log) / length**alpha, total + log, tokens + [token]))
        beam = sorted(options, key=lambda option: -option[0])[:beams]
        if all(tokens[-1] == end for _, _, tokens in beam):
            break
    score, _, (_, *tokens) = beam[0]
    return torch.tensor(tokens), score
""",
    "one-loop-of-sorted-pairs": """\
def beam_search(model, source, start, end, beams, max_len, alpha):
    is_over = lambda tokens: len(tokens) > 1 and tokens[-1] == end
    beam = [(torch.tensor([start], device=source.device), torch.zeros(()))]
    while any(not is_over(tokens) and len(tokens) <= max_len for tokens, _ in beam):
        options = []
        for tokens, total in beam:
            if is_over(tokens):
                options.append((tokens, total))
                continue
            logits = model(source, tokens.unsqueeze(0))[0, -1].detach().cpu()
            for token in range(logits.numel()):
                log = logits[token] - logits.logsumexp(dim=0)
                longer = torch.cat([tokens, torch.tensor([token], device=tokens.device)])
                options.append((longer, total + log))
        options.sort(key=lambda pair: float(pair[1] / (len(pair[0]) - 1) ** alpha), reverse=True)
        del options[beams:]
        beam = options
    tokens, total = beam[0]
    return tokens[1:], (total / (len(tokens) - 1) ** alpha).item()
""",
}

BEAM_SEARCH_RECORD = ValueRecord(
    public=BEAM_SEARCH,
    title="Beam search",
    defines="beam_search",
    parts=(Part("beam-search-check", 4, values),),
    properties=(),
    first_sizes=FIRST,
    other_length={"m": 13},
    other_sizes={"m": 7, "v": 10},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
