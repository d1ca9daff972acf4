"""The exercise of topic 04 about the probabilities of the next token, with temperature and top-k."""

import random

import numpy as np
from numpy.typing import NDArray

from grading.judging.judge import values
from grading.judging.mistakes import misbehaviours
from grading.judging.properties import SEQUENCES_APART, Ask, Property
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited, softmax
from transformer_lm.checks.topic_04_language_model.next_probabilities import (
    FLAT,
    NEXT_PROBABILITIES,
    SHARP,
)


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return logits, a temperature below 1 and a top_k; no two logits of a row are nearly equal."""
    b, v = sizes["b"], sizes["v"]
    ranks = np.argsort([[rng.random() for _ in range(v)] for _ in range(b)], axis=1)
    rows = dyadic(rng, b, 1, bound=1.5)  # so that the rows have different thresholds
    logits = (ranks - v // 2) / 4 + rows + dyadic(rng, b, v, bound=1 / 16)
    return {
        "logits": logits * sizes.get("magnitude", 1),
        "temperature": np.array(0.625 + dyadic(rng, bound=0.125)),
        "top_k": np.array(sizes["top_k"]),
    }


def reference(case: Arrays) -> Arrays:
    """Return the probabilities, row by row, as a softmax of the largest logits alone."""

    def probabilities(temperature: float, top_k: int) -> NDArray[np.float64]:
        found = np.zeros_like(case["logits"])
        for row, logits in zip(found, case["logits"], strict=True):
            largest = np.argsort(logits)[-top_k:]
            row[largest] = softmax(logits[largest] / temperature)
        return found

    temperature, top_k, v = float(case["temperature"]), int(case["top_k"]), case["logits"].shape[1]
    return {
        "probabilities": probabilities(temperature, top_k),
        "of_all_tokens": probabilities(temperature, v),
        "of_one_token": probabilities(temperature, 1),
        "flat": probabilities(FLAT, top_k),
        "sharp": probabilities(SHARP, v),
        "greedy": probabilities(1, 1),
    }


def _sums_to_one(ask: Ask, case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
    numbers = [each for each in ask(case).values() if not np.isnan(each).any()]  # NaN has its own hint
    return all(np.allclose(each.sum(axis=1), 1, atol=1e-4) and each.min() >= 0 for each in numbers)


SUMS_TO_ONE = Property("probability-lost", _sums_to_one)

# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def next_probabilities(logits, temperature, top_k):
    if temperature == 0:
        temperature, top_k = 1, 1
    smallest = logits.topk(top_k).values[:, -1:]
    kept = logits.masked_fill(logits < smallest, -math.inf)
    return (kept / temperature).softmax(dim=-1)
"""

ZERO = "temperature, top_k = 1, 1"
SMALLEST = "logits.topk(top_k).values[:, -1:]"
KEPT = "logits.masked_fill(logits < smallest, -math.inf)"
RETURNED = "(kept / temperature).softmax(dim=-1)"


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    ours = {"zero": ZERO, "smallest": SMALLEST, "kept": KEPT, "returned": RETURNED}
    return edited(name, MODEL_ANSWER, *((ours[line], theirs) for line, theirs in lines.items()), hint=hint)


TEMPERATURE_MISTAKES = (
    wrong("temperature-multiplied", returned="(kept * temperature).softmax(dim=-1)"),
    wrong("temperature-ignored", returned="kept.softmax(dim=-1)"),
    wrong("temperature-after-softmax", returned="kept.softmax(dim=-1) / temperature"),
    wrong("powers-of-probabilities", returned="kept.softmax(dim=-1) ** (1 / temperature)"),
    wrong("temperature-of-at-most-one", returned="(kept / min(temperature, 1)).softmax(dim=-1)"),
    wrong("temperature-of-at-least-one", returned="(kept / max(temperature, 1)).softmax(dim=-1)"),
    wrong("squared-temperature", returned="(kept / temperature / temperature).softmax(dim=-1)"),
    wrong("root-of-temperature", returned="(kept / temperature**0.5).softmax(dim=-1)"),
    wrong("divided-by-zero", zero="pass"),
    wrong(
        "divided-by-zero-and-scattered",
        zero="pass",
        kept="logits.topk(top_k)",
        returned="torch.zeros_like(logits).scatter(1, kept.indices, (kept.values / temperature).softmax(dim=-1))",
        hint="divided-by-zero",
    ),
    wrong("zero-taken-for-one", zero="temperature = 1"),
    wrong("zero-makes-all-alike", zero="temperature = 1e9"),
    wrong("zero-takes-the-smallest", zero="logits, temperature, top_k = -logits, 1, 1"),
    wrong("zero-takes-one-for-all-rows", zero="logits, temperature, top_k = logits.sum(dim=0).expand_as(logits), 1, 1"),
    wrong("zero-gives-a-number", zero="return logits.argmax(dim=-1)"),
    wrong("zero-gives-logits", zero="return torch.where(logits == logits.amax(dim=-1, keepdim=True), logits, 0)"),
)

TOP_K_MISTAKES = (
    wrong("top-k-ignored", kept="logits"),
    wrong(
        "top-k-not-renormalised",
        kept="logits",
        returned="(kept / temperature).softmax(dim=-1).masked_fill(logits < smallest, 0)",
    ),
    wrong("masked-with-zero", kept="logits.masked_fill(logits < smallest, 0)"),
    wrong(
        "keeps-the-smallest",
        smallest="logits.topk(top_k, largest=False).values[:, -1:]",
        kept="logits.masked_fill(logits > smallest, -math.inf)",
    ),
    wrong("leaves-out-the-largest", kept="logits.masked_fill(logits >= smallest, -math.inf)"),
    wrong("one-too-few", kept="logits.masked_fill(logits <= smallest, -math.inf)"),
    wrong("one-too-many", smallest="logits.topk(min(top_k + 1, logits.shape[1])).values[:, -1:]"),
    wrong("only-the-best", smallest="logits.topk(top_k).values[:, :1]"),
    wrong("threshold-of-the-first-row", smallest="logits.topk(top_k).values[0, -1]"),
    wrong("top-k-of-the-batch", smallest="logits.flatten().topk(top_k).values[-1]"),
    wrong(
        "first-tokens-of-the-vocabulary",
        kept="logits.masked_fill(torch.arange(logits.shape[1], device=logits.device) >= top_k, -math.inf)",
    ),
    wrong("threshold-before-temperature", kept="logits.masked_fill(logits / temperature < smallest, -math.inf)"),
    wrong("top-k-alone", kept="logits.topk(top_k).values"),
    wrong("sorted", kept=f"{KEPT}.sort(descending=True).values"),
    wrong("equal-shares", returned="(kept > -math.inf) / (kept > -math.inf).sum(dim=-1, keepdim=True)"),
)

SOFTMAX_MISTAKES = (
    wrong("softmax-twice", returned=f"{RETURNED}.softmax(dim=-1)"),
    wrong("softmax-before-top-k", kept="logits.softmax(dim=-1).masked_fill(logits < smallest, -math.inf)"),
    wrong("softmax-over-batch", returned="(kept / temperature).softmax(dim=0)"),
    wrong("softmax-over-everything", returned="(kept / temperature).flatten().softmax(dim=0).view_as(kept)"),
    wrong("log-softmax", returned="(kept / temperature).log_softmax(dim=-1)"),
    wrong("no-softmax", returned="kept / temperature"),
    wrong("not-normalised", returned="(kept / temperature).exp()"),
    wrong("overflows", returned="(kept / temperature).exp() / (kept / temperature).exp().sum(dim=-1, keepdim=True)"),
    wrong("sigmoid", returned="(kept / temperature).sigmoid()"),
)

MISBEHAVING = (
    # Two are left out, because nothing is trained here and the check passes copies of the logits.
    *(
        each
        for each in misbehaviours(MODEL_ANSWER, "next_probabilities", longer=(5, 17), calls=6)
        if each.name not in ("changes-its-input", "cuts-the-gradient")
    ),
    wrong("masks-in-place", kept="logits\n    logits[logits < smallest] = -math.inf"),
    wrong(
        "divides-in-place",
        returned="logits.div_(temperature).where(kept > -math.inf, kept).softmax(-1)",
        hint="masks-in-place",
    ),
    wrong("zero-gives-whole-numbers", zero="return F.one_hot(logits.argmax(dim=-1), logits.shape[-1])"),
    wrong(
        "zero-gives-bools", zero="return logits == logits.amax(dim=-1, keepdim=True)", hint="zero-gives-whole-numbers"
    ),
    wrong("top-k-along-the-batch", smallest="logits.topk(top_k, dim=0).values[-1]", hint="raises"),
    wrong("noisy", returned="(kept / temperature + torch.rand(kept.shape)).softmax(dim=-1)", hint="called-again"),
    wrong("probability-lost", returned="0.9 * (kept / temperature).softmax(dim=-1)"),
    wrong("batch-in-the-sum", returned="(kept / temperature - logits.mean(0)).softmax(dim=-1)", hint="sequences-mix"),
    wrong("with-the-tokens", returned="(kept / temperature).softmax(dim=-1).topk(top_k)", hint="not-a-tensor"),
    edited("nothing-returned", MODEL_ANSWER, (f"return {RETURNED}", RETURNED), hint="not-a-tensor"),
)

RIGHT = {
    "scattered": """\
def next_probabilities(logits, temperature, top_k):
    largest, tokens = torch.topk(logits, 1 if temperature == 0 else top_k, dim=-1)  # (b, top_k)
    probabilities = F.softmax(largest / (temperature or 1.0), dim=-1)
    return torch.zeros_like(logits).scatter(1, tokens, probabilities)
""",
    "greedy-apart": """\
def next_probabilities(logits, temperature, top_k):
    if temperature == 0:
        best = logits.argmax(dim=-1)  # (b,)
        return F.one_hot(best, logits.shape[-1]).to(logits.dtype)
    values, _ = torch.topk(logits, top_k)
    logits = torch.where(logits < values[:, [-1]], -torch.inf, logits)
    return torch.softmax(logits / temperature, dim=-1)
""",
    "hardly-any-temperature": """\
def next_probabilities(logits, temperature, top_k):
    scaled = logits / max(temperature, 1e-6)
    threshold = scaled.sort(dim=-1, descending=True).values[:, top_k - 1].unsqueeze(1)
    return scaled.masked_fill(scaled < threshold, -1e30).softmax(dim=-1)
""",
    "added-to-the-temperature": """\
def next_probabilities(logits, temperature, top_k):
    scaled = logits / (temperature + 1e-9)
    hidden = torch.full_like(scaled, float("-inf"))
    values, tokens = scaled.topk(top_k)
    return hidden.scatter_(-1, tokens, values).softmax(-1)
""",
    "renormalised": """\
def next_probabilities(logits, temperature, top_k):
    if temperature == 0:
        return (logits == logits.max(dim=-1, keepdim=True).values).float()
    probabilities = (logits / temperature).softmax(dim=-1)
    kept = torch.zeros_like(probabilities)
    tokens = probabilities.argsort(dim=-1, descending=True)[:, :top_k]
    kept.scatter_(1, tokens, probabilities.gather(1, tokens))
    return kept / kept.sum(dim=-1, keepdim=True)
""",
    "row-by-row": """\
def next_probabilities(logits, temperature, top_k):
    rows = []
    for row in logits:
        probabilities = torch.zeros_like(row)
        if temperature == 0:
            probabilities[row.argmax()] = 1
        else:
            tokens = row.topk(top_k).indices
            probabilities[tokens] = (row[tokens] / temperature).softmax(dim=0)
        rows.append(probabilities)
    return torch.stack(rows)
""",
    "masked-in-a-copy": """\
def next_probabilities(logits, temperature, top_k):
    if temperature < 1e-8:
        temperature, top_k = 1.0, 1
    logits = logits.clone()
    smallest = torch.kthvalue(logits, logits.shape[1] - top_k + 1, dim=1, keepdim=True).values
    logits[logits < smallest] = -float("inf")
    logits /= temperature
    return nn.Softmax(dim=-1)(logits)
""",
    "counted-above": """\
def next_probabilities(logits, temperature, top_k):
    above = (logits[:, None, :] > logits[:, :, None]).sum(dim=-1)  # (b, v), how many logits are larger
    if temperature == 0:
        return (above == 0) * 1.0
    return (logits / temperature + torch.where(above < top_k, 0.0, -math.inf)).softmax(dim=-1)
""",
    "own-softmax": """\
def next_probabilities(logits, temperature, top_k):
    best = logits.amax(dim=-1, keepdim=True)
    if temperature == 0:
        return torch.where(logits == best, 1.0, 0.0)
    exponentials = torch.exp((logits - best) / temperature)
    kept = exponentials * (logits >= logits.topk(top_k).values.amin(dim=-1, keepdim=True))
    return kept / kept.sum(dim=-1, keepdim=True)
""",
    "from-logarithms": """\
def next_probabilities(logits, temperature, top_k):
    if temperature == 0:
        return torch.eye(logits.size(-1), device=logits.device)[logits.argmax(-1)]
    values, tokens = logits.topk(top_k, sorted=False)
    logs = F.log_softmax(values / temperature, dim=-1)
    return torch.zeros_like(logits).scatter_add(-1, tokens, logs.exp())
""",
    "numpy": """\
import numpy as np


def next_probabilities(logits, temperature, top_k):
    array = logits.cpu().numpy()
    tokens = np.argsort(-array, axis=1)[:, : top_k if temperature else 1]
    largest = np.take_along_axis(array, tokens, axis=1)
    exponentials = np.exp((largest - largest[:, :1]) / (temperature or 1))
    probabilities = np.zeros_like(array)
    np.put_along_axis(probabilities, tokens, exponentials / exponentials.sum(axis=1, keepdims=True), axis=1)
    return torch.from_numpy(probabilities).to(logits.device)
""",
}

NEXT_PROBABILITIES_RECORD = ValueRecord(
    public=NEXT_PROBABILITIES,
    title="Probabilities of the next token",
    defines="next_probabilities",
    parts=(Part("next-probabilities-check", 3, values),),
    properties=(SUMS_TO_ONE, SEQUENCES_APART),
    first_sizes={"b": 3, "v": 11, "top_k": 4},
    other_length={"b": 5, "v": 17},
    other_sizes={"b": 5, "v": 14, "top_k": 6, "magnitude": 8},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=(*TEMPERATURE_MISTAKES, *TOP_K_MISTAKES, *SOFTMAX_MISTAKES),
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
