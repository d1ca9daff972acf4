"""The exercise of topic 04 about a model's loss at the last position of a slice, in bits."""

import random

import numpy as np
from numpy.typing import NDArray

from grading.judging.judge import values
from grading.judging.mistakes import ERROR
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.engine.calling import CALLED_AGAIN, OTHER_LENGTH, OTHER_SIZES
from transformer_lm.checks.topic_04_language_model.last_position_bits import (
    FROZEN,
    GRAPH,
    LAST_POSITION_BITS,
    MODE,
    NOT_A_NUMBER,
    SWITCHED_OFF,
)


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return the tokens of two batches of b sequences and a last batch, and the weights of a simple model.

    The first sequence ends with token 0, and the second does not.
    """
    b, n, v = sizes["b"], sizes["n"], sizes["v"]
    shape = (2 * b + 1, n + 1)
    tokens = np.array([int(rng.random() * v) for _ in range(shape[0] * shape[1])]).reshape(shape)
    tokens[:2, -1] = 0, 1 + tokens[1, -1] % (v - 1)
    return {
        "tokens": tokens,
        "table": dyadic(rng, v, v, bound=4 * sizes.get("magnitude", 1)),
        "added": dyadic(rng, v, bound=4),
    }


def reference(case: Arrays) -> Arrays:
    """Return the mean of -log2 p of the last token, sequence by sequence, for all batches and for the first."""

    def bits(tokens: NDArray[np.int64]) -> float:
        logits = case["table"][tokens[:-1]].mean(axis=0)
        largest = logits.max()
        return float((largest + np.log(np.exp(logits - largest).sum()) - logits[tokens[-1]]) / np.log(2))

    found = [bits(tokens) for tokens in case["tokens"]]
    return {"bits": np.array([np.mean(found)]), "bits_of_one_batch": np.array([np.mean(found[: len(found) // 2])])}


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def last_position_bits(model, batches):
    was_training = model.training
    model.eval()
    bits, count = 0, 0
    with torch.no_grad():
        for batch in batches:
            inputs, last = batch[:, :-1], batch[:, -1]
            logits = model(inputs)[:, -1]
            losses = F.cross_entropy(logits, last, reduction="none") / math.log(2)
            bits += losses.sum()
            count += len(losses)
    model.train(was_training)
    return bits / count
"""

EVAL = "    model.eval()\n"
GIVEN = "inputs, last = batch[:, :-1], batch[:, -1]"
LOGITS = "logits = model(inputs)[:, -1]"
LOSSES = 'F.cross_entropy(logits, last, reduction="none") / math.log(2)'
SUM = "bits += losses.sum()"
COUNT = "count += len(losses)"
RESTORED = "    model.train(was_training)\n"
RETURNED = "return bits / count"


def wrong(name: str, hint: str, **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    ours = {"eval": EVAL, "given": GIVEN, "logits": LOGITS, "losses": LOSSES, "sum": SUM, "count": COUNT}
    ours |= {"restored": RESTORED, "returned": RETURNED}
    return edited(name, hint, MODEL_ANSWER, *((ours[line], theirs) for line, theirs in lines.items()))


ZERO_LEFT_OUT = "Sequences that end in token 0 are left out, as if it were padding: here it is a token as any other."

WRONG = (
    wrong(
        "natural-logs",
        "These are natural logarithms: bits are logarithms to the base 2.",
        losses='F.cross_entropy(logits, last, reduction="none")',
    ),
    wrong(
        "logs-to-the-base-ten",
        "These are logarithms to the base 10: bits are logarithms to the base 2.",
        losses='F.cross_entropy(logits, last, reduction="none") / math.log(10)',
    ),
    wrong(
        "multiplied-by-log-two",
        "The natural logarithms are multiplied by ln 2: how many bits are one nat?",
        losses='F.cross_entropy(logits, last, reduction="none") * math.log(2)',
    ),
    wrong(
        "logarithm-of-the-loss",
        "The logarithm of the loss is taken, which is one already: change its base, and nothing else.",
        losses='F.cross_entropy(logits, last, reduction="none").log2()',
    ),
    wrong(
        "sign-flipped",
        "The sign is wrong: probabilities lie below 1, so that -log2 of them is positive.",
        returned="return -bits / count",
    ),
    wrong(
        "position-before-the-last",
        "The position before the last predicts the last token: that is one position too early.",
        logits="logits = model(inputs)[:, -2]",
    ),
    wrong(
        "first-position",
        "The first position predicts the last token: the last one has read more.",
        logits="logits = model(inputs)[:, 0]",
    ),
    wrong(
        "last-input-as-label",
        "The label is the token that the last position has read itself: it should predict the one after it.",
        given="inputs, last = batch[:, :-1], batch[:, -2]",
    ),
    wrong(
        "one-token-short",
        "The last token is never used: the one before it is predicted, one position too early.",
        given="inputs, last = batch[:, :-2], batch[:, -2]",
    ),
    wrong(
        "reads-the-answer",
        "The model reads the token that it should predict: the inputs go up to the end of the slice.",
        given="inputs, last = batch[:, 1:], batch[:, -1]",
    ),
    wrong(
        "first-token-cut-off",
        "The model does not read the first token: all tokens before the last are there to be read.",
        given="inputs, last = batch[:, 1:-1], batch[:, -1]",
    ),
    wrong(
        "reads-one-token",
        "The model reads one token alone: all tokens before the last are there to be read.",
        given="inputs, last = batch[:, -2:-1], batch[:, -1]",
    ),
    wrong(
        "first-token-as-label",
        "The first token of the slice is predicted: it should be the last.",
        given="inputs, last = batch[:, :-1], batch[:, 0]",
    ),
    wrong(
        "all-positions",
        "The mean runs over all positions: only the last one is asked for, which has read the most.",
        logits="logits, last = model(inputs).flatten(0, 1), batch[:, 1:].flatten()",
    ),
    wrong(
        "logits-averaged",
        "The logits of all positions are averaged: only those of the last one are asked for.",
        logits="logits = model(inputs).mean(dim=1)",
    ),
    wrong(
        "bits-of-each-sequence",
        "The bits of each sequence are returned: their mean is asked for, one number.",
        sum="bits = torch.cat([bits, losses]) if count else losses",
        returned="return bits",
    ),
    wrong("summed", "The bits of all sequences are summed: their mean is asked for.", returned="return bits"),
    wrong(
        "mean-of-means",
        "The means of the batches are averaged: a small batch counts as much as a large one.",
        sum="bits += losses.mean()",
        count="count += 1",
    ),
    wrong(
        "divided-by-batches",
        "The sum over sequences is divided by the number of batches.",
        count="count += 1",
    ),
    wrong(
        "means-divided-by-sequences",
        "The means of the batches are summed, and divided by the number of sequences: that divides twice.",
        sum="bits += losses.mean()",
    ),
    wrong(
        "divided-by-tokens",
        "The sum is divided by the number of tokens that were read: each sequence has one last token.",
        count="count += inputs.numel()",
    ),
    wrong("last-batch-only", "Only the last batch counts.", sum="bits = losses.sum()", count="count = len(losses)"),
    wrong(
        "last-batch-over-all",
        "The bits of the last batch alone are divided by the number of all sequences.",
        sum="bits = losses.sum()",
    ),
    wrong(
        "first-batch-only",
        "Only the first batch counts: something ends the loop after it.",
        count=f"{COUNT}\n            break",
    ),
    wrong(
        "first-sequences-only",
        "Only the first sequence of each batch counts.",
        sum="bits += losses[0]",
        count="count += 1",
    ),
    wrong(
        "last-batch-dropped",
        "A batch that is smaller than the others is left out.",
        losses=f"{LOSSES}\n            if len(batch) == 1:\n                continue",
    ),
    wrong(
        "in-train-mode",
        "The model stays in train mode while it is measured: dropout would disturb it.",
        eval="",
    ),
    wrong(
        "set-to-train-mode",
        "The model is set to train mode: dropout would disturb the measurement.",
        eval="    model.train()\n",
    ),
    wrong(
        "softmax-twice",
        "The softmax is applied twice: cross-entropy holds one already, and expects logits.",
        logits="logits = model(inputs)[:, -1].softmax(dim=-1)",
    ),
    wrong(
        "softmax-over-batch",
        "The softmax runs over the batch: the probabilities of all tokens must sum to 1, sequence by sequence.",
        losses="-logits.softmax(dim=0).gather(1, last[:, None])[:, 0].log2()",
    ),
    wrong(
        "no-softmax",
        "The logits themselves are added up: a probability needs a softmax over all tokens.",
        losses="-logits.gather(1, last[:, None])[:, 0]",
    ),
    wrong(
        "no-logarithm",
        "The probabilities are averaged: bits are logarithms of them.",
        losses="logits.softmax(dim=-1).gather(1, last[:, None])[:, 0]",
    ),
    wrong(
        "logarithm-of-the-mean",
        "The logarithm of the mean probability is taken: take it for each sequence, and then the mean.",
        losses="logits.softmax(dim=-1).gather(1, last[:, None])[:, 0]",
        returned="return -(bits / count).log2()",
    ),
    wrong(
        "perplexity",
        "This is the perplexity, 2 to the power of the bits: the bits themselves are asked for.",
        returned="return 2 ** (bits / count)",
    ),
    wrong(
        "bits-of-the-best-guess",
        "These are the bits of the most likely token: those of the token that really came are asked for.",
        given="inputs = batch[:, :-1]",
        logits=f"{LOGITS}\n            last = logits.argmax(dim=-1)",
    ),
    wrong(
        "entropy",
        "This is the entropy of the predictions: which token really came has no effect on it.",
        losses="-(logits.softmax(dim=-1) * logits.log_softmax(dim=-1)).sum(dim=-1) / math.log(2)",
    ),
    wrong(
        "share-of-misses",
        "This is the share of wrong guesses: bits also tell how sure the model was.",
        losses="(logits.argmax(dim=-1) != last).float()",
    ),
    wrong(
        "divided-by-those-of-guessing",
        "The bits are divided by those of guessing among all tokens: nothing asks for that here.",
        losses=f"{LOSSES} / math.log2(logits.shape[1])",
    ),
    wrong(
        "zero-taken-for-padding",
        ZERO_LEFT_OUT,
        sum="bits += F.cross_entropy(logits, last, ignore_index=0) / math.log(2) * len(batch)",
    ),
    wrong(
        "zero-costs-nothing",
        ZERO_LEFT_OUT,
        losses='F.cross_entropy(logits, last, ignore_index=0, reduction="none") / math.log(2)',
    ),
    wrong(
        "batches-read-twice",
        "The batches are read twice, and are used up the second time: an iterable gives them once.",
        eval=f"{EVAL}    total = sum(len(batch) for batch in batches)\n",
        returned="return bits / total",
    ),
)

NO_GRAD = "with torch.no_grad():"
COUNTED = """

measured, calls = last_position_bits, []


def last_position_bits(model, batches):
    calls.append(model.max_len)
    {change}
    return measured(model, batches)
"""


def remembering(name: str, hint: str, change: str) -> WrongAnswer:
    """Return the answer that remembers its first call and then does something else; a case calls it twice."""
    return WrongAnswer(name, hint, MODEL_ANSWER + COUNTED.format(change=change))


MISBEHAVING = (
    wrong("left-in-eval-mode", MODE, restored=""),
    wrong("always-left-in-train-mode", MODE, restored="    model.train()\n"),
    wrong("only-the-outer-module-restored", MODE, restored="    model.training = was_training\n"),
    edited("graph-built", GRAPH, MODEL_ANSWER, (NO_GRAD, "if True:")),
    edited(
        "graph-built-and-forgotten", GRAPH, MODEL_ANSWER, (NO_GRAD, "if True:"), (SUM, "bits += losses.sum().item()")
    ),
    wrong(
        "the-whole-slice-read",
        ERROR,
        logits="logits = model(batch)[:, -2]",
    ),
    wrong("length-of-an-iterator", ERROR, returned="return bits / len(batches)"),
    edited(
        "gradients-left-switched-off",
        SWITCHED_OFF,
        MODEL_ANSWER,
        (NO_GRAD, "torch.set_grad_enabled(False)\n    if True:"),
    ),
    edited(
        "model-frozen", FROZEN, MODEL_ANSWER, (EVAL, "    model.eval().requires_grad_(False)\n"), (NO_GRAD, "if True:")
    ),
    wrong("list-of-bits", NOT_A_NUMBER, returned="return [bits / count]"),
    edited("nothing-returned", NOT_A_NUMBER, MODEL_ANSWER, (RETURNED, "bits / count")),
    remembering("differs-the-second-time", CALLED_AGAIN, "batches = batches if len(calls) <= 2 else list(batches)[:1]"),
    remembering("fits-one-length", OTHER_LENGTH, "batches = [batch[:, -7:] for batch in batches]"),
    remembering("fits-known-sizes", OTHER_SIZES, "batches = [batch[:, -17:] for batch in batches]"),
)

RIGHT = {
    "sum-of-each-batch": """\
def last_position_bits(model, batches):
    training = model.training
    model.eval()
    nats = 0.0
    sequences = 0
    for batch in batches:
        with torch.no_grad():
            logits = model(batch[:, :-1])  # (b, n, v)
        nats += F.cross_entropy(logits[:, -1, :], batch[:, -1], reduction="sum").item()
        sequences += batch.shape[0]
    if training:
        model.train()
    return nats / sequences / math.log(2)
""",
    "decorated": """\
@torch.no_grad()
def last_position_bits(model, batches):
    before = model.training
    model.eval()
    found = []
    for batch in batches:
        probabilities = model(batch[:, :-1])[:, -1].log_softmax(dim=-1).exp()
        found.append(-torch.log2(probabilities[torch.arange(len(batch)), batch[:, -1]]))
    model.train(before)
    return torch.cat(found).mean()
""",
    "inference-mode": """\
def last_position_bits(model, batches):
    was_training = model.training
    try:
        with torch.inference_mode():
            logs = [model.eval()(batch[:, :-1]).log_softmax(-1)[:, -1].gather(1, batch[:, -1:]) for batch in batches]
            return -torch.cat(logs).mean() / math.log(2)
    finally:
        model.train(was_training)
""",
    "sequence-by-sequence": """\
def last_position_bits(model, batches):
    mode = model.training
    model.train(False)
    bits = []
    with torch.no_grad():
        for batch in batches:
            for tokens in batch:
                logits = model(tokens[None, :-1])[0, -1]
                bits.append((logits.logsumexp(dim=0) - logits[tokens[-1]]).item() / math.log(2))
    model.train(mode)
    return sum(bits) / len(bits)
""",
    "all-batches-first": """\
def last_position_bits(model, batches):
    tokens = torch.cat(list(batches))
    mode = model.training
    model.eval()
    with torch.no_grad():
        logits = model(tokens[:, :-1])
    model.train(mode)
    return F.cross_entropy(logits[:, -1], tokens[:, -1]) * math.log2(math.e)
""",
    "numpy-number": """\
import numpy as np


def last_position_bits(model, batches):
    mode = model.training
    model.eval()
    found = []
    for batch in batches:
        with torch.no_grad():
            logits = model(batch[:, :-1])[:, -1].cpu().numpy()
        logits = logits - logits.max(axis=1, keepdims=True)
        labels = batch[:, -1].cpu().numpy()
        found.append(np.log2(np.exp(logits).sum(axis=1)) - logits[range(len(labels)), labels] / np.log(2))
    model.train(mode)
    return np.float32(np.concatenate(found).mean())
""",
    "weighted-means": """\
def last_position_bits(model, batches):
    mode = model.training
    model.eval()
    means, sizes = [], []
    with torch.no_grad():
        for batch in batches:
            inputs, labels = batch[:, :-1], batch[:, 1:]
            means.append(F.cross_entropy(model(inputs)[:, -1], labels[:, -1]).item())
            sizes.append(len(batch))
    model.train(mode)
    return sum(mean * size for mean, size in zip(means, sizes)) / sum(sizes) / math.log(2)
""",
    "losses-of-all-positions": """\
def last_position_bits(model, batches):
    mode = model.training
    model.eval()
    last = []
    with torch.no_grad():
        for batch in batches:
            logits = model(batch[:, :-1])
            losses = F.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none")  # (b, n)
            last.extend(losses[:, -1].tolist())
    model.train(mode)
    return sum(last) / len(last) / math.log(2)
""",
    "modes-of-all-modules": """\
def last_position_bits(model, batches):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    total = torch.zeros((), dtype=torch.float64)
    count = 0
    with torch.set_grad_enabled(False):
        for batch in batches:
            logs = F.log_softmax(model(batch[:, :-1])[:, -1].double(), dim=-1)
            total += F.nll_loss(logs, batch[:, -1], reduction="sum").cpu() / math.log(2)
            count += len(batch)
    for module, mode in modes.items():
        module.training = mode
    return total / count
""",
    "running-mean": """\
def last_position_bits(model, batches):
    was_training, mean, count = model.training, 0.0, 0
    model.eval()
    gradients = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    for batch in batches:
        *_, logits = model(batch[..., :-1]).unbind(dim=1)
        for row, token in zip(logits.softmax(dim=-1), batch[..., -1]):
            count += 1
            mean += (-math.log2(row[token]) - mean) / count
    torch.set_grad_enabled(gradients)
    if was_training:
        model.train()
    else:
        model.eval()
    return mean
""",
}

LAST_POSITION_BITS_RECORD = ValueRecord(
    public=LAST_POSITION_BITS,
    title="Bits of the last position",
    defines="last_position_bits",
    parts=(Part("last-position-bits-check", 3, values),),
    properties=(),
    first_sizes={"b": 3, "n": 5, "v": 11},
    other_length={"b": 4, "n": 13},
    other_sizes={"b": 5, "n": 6, "v": 14, "magnitude": 4},
    ones=("n",),
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
