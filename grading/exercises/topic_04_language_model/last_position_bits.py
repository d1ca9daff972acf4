"""The exercise of topic 04 about a model's loss at the last position of a slice, in bits."""

import random

import numpy as np
from numpy.typing import NDArray

from grading.judging.judge import values
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.topic_04_language_model.last_position_bits import (
    LAST_POSITION_BITS,
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


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    ours = {"eval": EVAL, "given": GIVEN, "logits": LOGITS, "losses": LOSSES, "sum": SUM, "count": COUNT}
    ours |= {"restored": RESTORED, "returned": RETURNED}
    return edited(name, MODEL_ANSWER, *((ours[line], theirs) for line, theirs in lines.items()), hint=hint)


WRONG = (
    wrong("natural-logs", losses='F.cross_entropy(logits, last, reduction="none")'),
    wrong("logs-to-the-base-ten", losses='F.cross_entropy(logits, last, reduction="none") / math.log(10)'),
    wrong("multiplied-by-log-two", losses='F.cross_entropy(logits, last, reduction="none") * math.log(2)'),
    wrong("logarithm-of-the-loss", losses='F.cross_entropy(logits, last, reduction="none").log2()'),
    wrong("sign-flipped", returned="return -bits / count"),
    wrong("position-before-the-last", logits="logits = model(inputs)[:, -2]"),
    wrong("first-position", logits="logits = model(inputs)[:, 0]"),
    wrong("last-input-as-label", given="inputs, last = batch[:, :-1], batch[:, -2]"),
    wrong("one-token-short", given="inputs, last = batch[:, :-2], batch[:, -2]"),
    wrong("reads-the-answer", given="inputs, last = batch[:, 1:], batch[:, -1]"),
    wrong("first-token-cut-off", given="inputs, last = batch[:, 1:-1], batch[:, -1]"),
    wrong("reads-one-token", given="inputs, last = batch[:, -2:-1], batch[:, -1]"),
    wrong("first-token-as-label", given="inputs, last = batch[:, :-1], batch[:, 0]"),
    wrong("all-positions", logits="logits, last = model(inputs).flatten(0, 1), batch[:, 1:].flatten()"),
    wrong("logits-averaged", logits="logits = model(inputs).mean(dim=1)"),
    wrong("bits-of-each-sequence", sum="bits = torch.cat([bits, losses]) if count else losses", returned="return bits"),
    wrong("summed", returned="return bits"),
    wrong("mean-of-means", sum="bits += losses.mean()", count="count += 1"),
    wrong("divided-by-batches", count="count += 1"),
    wrong("means-divided-by-sequences", sum="bits += losses.mean()"),
    wrong("divided-by-tokens", count="count += inputs.numel()"),
    wrong("last-batch-only", sum="bits = losses.sum()", count="count = len(losses)"),
    wrong("last-batch-over-all", sum="bits = losses.sum()"),
    wrong("first-batch-only", count=f"{COUNT}\n            break"),
    wrong("first-sequences-only", sum="bits += losses[0]", count="count += 1"),
    wrong("last-batch-dropped", losses=f"{LOSSES}\n            if len(batch) == 1:\n                continue"),
    wrong("in-train-mode", eval=""),
    wrong("set-to-train-mode", eval="    model.train()\n"),
    wrong("softmax-twice", logits="logits = model(inputs)[:, -1].softmax(dim=-1)"),
    wrong("softmax-over-batch", losses="-logits.softmax(dim=0).gather(1, last[:, None])[:, 0].log2()"),
    wrong("no-softmax", losses="-logits.gather(1, last[:, None])[:, 0]"),
    wrong("no-logarithm", losses="logits.softmax(dim=-1).gather(1, last[:, None])[:, 0]"),
    wrong(
        "logarithm-of-the-mean",
        losses="logits.softmax(dim=-1).gather(1, last[:, None])[:, 0]",
        returned="return -(bits / count).log2()",
    ),
    wrong("perplexity", returned="return 2 ** (bits / count)"),
    wrong(
        "bits-of-the-best-guess",
        given="inputs = batch[:, :-1]",
        logits=f"{LOGITS}\n            last = logits.argmax(dim=-1)",
    ),
    wrong("entropy", losses="-(logits.softmax(dim=-1) * logits.log_softmax(dim=-1)).sum(dim=-1) / math.log(2)"),
    wrong("share-of-misses", losses="(logits.argmax(dim=-1) != last).float()"),
    wrong("divided-by-those-of-guessing", losses=f"{LOSSES} / math.log2(logits.shape[1])"),
    wrong(
        "zero-taken-for-padding", sum="bits += F.cross_entropy(logits, last, ignore_index=0) / math.log(2) * len(batch)"
    ),
    wrong(
        "zero-costs-nothing",
        losses='F.cross_entropy(logits, last, ignore_index=0, reduction="none") / math.log(2)',
        hint="zero-taken-for-padding",
    ),
    wrong(
        "batches-read-twice",
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


def remembering(name: str, change: str, hint: str = "") -> WrongAnswer:
    """Return the answer that remembers its first call and then does something else; a case calls it twice."""
    return WrongAnswer(name, MODEL_ANSWER + COUNTED.format(change=change), hint=hint)


MISBEHAVING = (
    wrong("left-in-eval-mode", restored=""),
    wrong("always-left-in-train-mode", restored="    model.train()\n", hint="left-in-eval-mode"),
    wrong("only-the-outer-module-restored", restored="    model.training = was_training\n", hint="left-in-eval-mode"),
    edited("graph-built", MODEL_ANSWER, (NO_GRAD, "if True:")),
    edited(
        "graph-built-and-forgotten",
        MODEL_ANSWER,
        (NO_GRAD, "if True:"),
        (SUM, "bits += losses.sum().item()"),
        hint="graph-built",
    ),
    wrong("the-whole-slice-read", logits="logits = model(batch)[:, -2]", hint="raises"),
    wrong("length-of-an-iterator", returned="return bits / len(batches)", hint="raises"),
    edited("gradients-left-switched-off", MODEL_ANSWER, (NO_GRAD, "torch.set_grad_enabled(False)\n    if True:")),
    edited("model-frozen", MODEL_ANSWER, (EVAL, "    model.eval().requires_grad_(False)\n"), (NO_GRAD, "if True:")),
    wrong("list-of-bits", returned="return [bits / count]", hint="not-a-number"),
    edited("nothing-returned", MODEL_ANSWER, (RETURNED, "bits / count"), hint="not-a-number"),
    remembering(
        "differs-the-second-time", "batches = batches if len(calls) <= 2 else list(batches)[:1]", hint="called-again"
    ),
    remembering("fits-one-length", "batches = [batch[:, -7:] for batch in batches]", hint="other-length"),
    remembering("fits-known-sizes", "batches = [batch[:, -17:] for batch in batches]", hint="other-sizes"),
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
