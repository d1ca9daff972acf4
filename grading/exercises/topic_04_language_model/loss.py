"""The exercise of topic 04 about the loss: the cross-entropy of the real next tokens."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import misbehaviours
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.topic_04_language_model.loss import LARGE, LOSS, NO_TOKEN


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return logits, labels of different lengths filled up with padding, and the padding token.

    The second sequence has no padding. In a batch of four or more, the last sequence is all padding. The token 0 is an
    ordinary label, and so is the last token of the vocabulary.
    """
    b, n, v = (sizes[name] for name in ("b", "n", "v"))
    pad = 1 + int(rng.random() * (v - 1))
    lengths = np.array([1 + int(rng.random() * (n - 1)) for _ in range(b)])
    lengths[1] = n
    if b > 3:
        lengths[-1] = 0
    labels = np.array([int(rng.random() * (v - 1)) for _ in range(b * n)]).reshape(b, n)
    labels[labels >= pad] += 1
    labels[1, ::2] = 0
    labels[1, 1] = v - 1 if pad < v - 1 else 0  # if v - 1 is padding, the first sequence contains it
    return {
        "logits": dyadic(rng, b, n, v, bound=4),
        "labels": np.where(np.arange(n) < lengths[:, None], labels, pad),
        "pad": np.array(pad),
    }


def reference(case: Arrays) -> Arrays:
    """Return the mean over all real labels, computed label by label, for each of the calls."""

    def mean(scale: int, pad: int) -> np.ndarray:
        losses = []
        for logits, label in zip(scale * case["logits"].reshape(-1, v), case["labels"].flat, strict=True):
            if label != pad:
                above = logits - logits[label]
                losses.append(above.max() + np.log(np.exp(above - above.max()).sum()))
        return np.array([sum(losses) / len(losses)])

    v, pad = case["logits"].shape[-1], int(case["pad"])
    return {"loss": mean(1, pad), "loss_large": mean(LARGE, pad), "loss_without_padding": mean(1, NO_TOKEN)}


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def compute_loss(logits, labels, pad):
    b, n, v = logits.shape
    real = labels != pad  # (b, n)
    log_p = logits.log_softmax(dim=-1)  # (b, n, v)
    losses = -log_p.gather(-1, labels[:, :, None])[:, :, 0]  # (b, n)
    return losses[real].mean()
"""

REAL = "labels != pad"
LOG_P = "logits.log_softmax(dim=-1)"
LOSSES = "-log_p.gather(-1, labels[:, :, None])[:, :, 0]"
MEAN = "losses[real].mean()"


def wrong(
    name: str, real: str = REAL, log_p: str = LOG_P, losses: str = LOSSES, returned: str = MEAN, hint: str = ""
) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, MODEL_ANSWER, (REAL, real), (LOG_P, log_p), (LOSSES, losses), (MEAN, returned), hint=hint)


WRONG = (
    wrong("padding-predicted", returned="losses.mean()"),
    wrong("averaged-over-padding", returned="(losses * real).mean()"),
    wrong("mask-inverted", real="labels == pad"),
    wrong("zero-taken-for-padding", real="labels != 0"),
    wrong("softmax-twice", log_p="logits.softmax(dim=-1).log_softmax(dim=-1)"),
    wrong("softmax-over-positions", log_p="logits.log_softmax(dim=1)"),
    wrong("softmax-over-batch", log_p="logits.log_softmax(dim=0)"),
    wrong("no-softmax", log_p="logits"),
    wrong("no-logarithm", log_p="logits.softmax(dim=-1)"),
    wrong("probability-missed", log_p="logits.softmax(dim=-1) - 1"),
    wrong("log-of-mean", returned="-(-losses[real]).exp().mean().log()"),
    wrong("sign-missing", returned="-losses[real].mean()"),
    wrong("bits", returned="losses[real].mean() / math.log(2)"),
    wrong("decimal-logarithm", returned="losses[real].mean() / math.log(10)"),
    wrong("perplexity", returned="losses[real].mean().exp()"),
    wrong("summed", returned="losses[real].sum()"),
    wrong("divided-by-sequences", returned="losses[real].sum() / b"),
    wrong("divided-by-positions", returned="losses[real].sum() / n"),
    wrong("divided-by-vocabulary", returned="losses[real].mean() / v"),
    wrong("mean-of-means", returned="((losses * real).sum(dim=1) / real.sum(dim=1)).mean()"),
    wrong("mean-of-positions", returned="((losses * real).sum(dim=0) / real.sum(dim=0)).mean()"),
    wrong("last-position-only", returned="losses[:, -1][real[:, -1]].mean()"),
    wrong("first-position-only", returned="losses[:, 0][real[:, 0]].mean()"),
    wrong("first-sequence-only", returned="losses[0][real[0]].mean()"),
    wrong(
        "shifted-again",
        losses="-log_p[:, :-1].gather(-1, labels[:, 1:, None])[:, :, 0]",
        returned="losses[real[:, 1:]].mean()",
    ),
    wrong(
        "shifted-back",
        losses="-log_p[:, 1:].gather(-1, labels[:, :-1, None])[:, :, 0]",
        returned="losses[real[:, :-1]].mean()",
    ),
    wrong("axes-by-view", losses='F.cross_entropy(logits.view(b, v, n), labels, reduction="none")'),
    wrong("best-guess", losses="-log_p.amax(dim=-1)"),
    wrong("entropy", losses="-(log_p.exp() * log_p).sum(dim=-1)"),
    wrong("squared-error", losses="(log_p.exp() - F.one_hot(labels, v)).square().sum(dim=-1)"),
    wrong("accuracy", returned="(logits.argmax(dim=-1) == labels)[real].to(logits.dtype).mean()"),
    wrong("padding-impossible", log_p="logits.index_fill(-1, torch.tensor([pad]), -math.inf).log_softmax(dim=-1)"),
    wrong("log-of-softmax", log_p="logits.softmax(dim=-1).log()"),
    wrong(
        "log-of-softmax-times-mask",
        log_p="logits.softmax(dim=-1).log()",
        returned="(losses * real).sum() / real.sum()",
        hint="log-of-softmax",
    ),
    *(
        wrong(
            f"kept-from-zero-by-{small}",
            log_p=f"(logits.softmax(dim=-1) + {small}).log()",
            hint="kept-from-zero-by-1e-6",
        )
        for small in ("1e-6", "1e-7", "1e-8", "1e-9", "1e-10", "1e-12")
    ),
    wrong("last-token-left-out", log_p="logits.log_softmax(dim=-1)\n    real = labels != pad % v"),
)

BEHAVIOURS = misbehaviours(MODEL_ANSWER, "compute_loss", longer=(4, 13), calls=3)
TRIED = ("cuts-the-gradient", "differs-the-second-time", "fits-one-length", "fits-known-sizes")

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name in TRIED),
    WrongAnswer("the-package-s-own", "from transformer_lm.lm import compute_loss\n", hint="not-yours"),
    wrong("not-averaged", returned="losses", hint="not-one-number"),
    wrong("of-each-sequence", returned="(losses * real).sum(dim=1) / real.sum(dim=1)", hint="not-one-number"),
    wrong("keeps-an-axis", returned="losses[real].mean(dim=0, keepdim=True)", hint="not-one-number"),
    wrong("a-python-number", returned="losses[real].mean().item()", hint="not-one-number"),
    edited("nothing-returned", MODEL_ANSWER, (f"return {MEAN}", MEAN), hint="not-one-number"),
    wrong("a-new-tensor", returned="torch.tensor(losses[real].mean().item())", hint="graph-cut"),
    wrong(
        "log-of-sum-of-exponentials",
        log_p="logits - logits.exp().sum(dim=-1, keepdim=True).log()",
        hint="log-of-softmax",
    ),
    edited(
        "padding-renamed-in-place",
        MODEL_ANSWER,
        (MEAN, "F.cross_entropy(logits.mT, labels.masked_fill_(~real, -100))"),
        hint="input-changed",
    ),
    edited(
        "largest-subtracted-in-place",
        MODEL_ANSWER,
        ("    real =", "    logits -= logits.amax(dim=-1, keepdim=True).detach()\n    real ="),
        hint="input-changed",
    ),
    wrong(
        "labels-viewed",
        returned="F.cross_entropy(logits.view(-1, v), labels.view(-1), ignore_index=pad)",
        hint="view-not-contiguous",
    ),
    wrong("vocabulary-last", returned="F.cross_entropy(logits, labels, ignore_index=pad)", hint="shapes-do-not-fit"),
    wrong("labels-without-an-axis", losses="-log_p.gather(-1, labels)", hint="shapes-do-not-fit"),
    edited(
        "weight-of-the-last-token-is-zero",
        MODEL_ANSWER,
        ("    real =", "    weight = torch.ones(v, dtype=logits.dtype)\n    weight[pad] = 0\n    real ="),
        (MEAN, "F.cross_entropy(logits.mT, labels, weight=weight)"),
        hint="last-token-left-out",
    ),
    wrong(
        "fixed-sizes", losses="-log_p.view(15, 11).gather(-1, labels.reshape(15, 1)).view(3, 5)", hint="other-length"
    ),
    edited(
        "first-padding-for-ever",
        MODEL_ANSWER,
        ("def compute_loss(", "known = []\n\n\ndef compute_loss("),
        ("    real =", "    if pad != -1:\n        known.append(pad)\n        pad = known[0]\n    real ="),
        hint="other-length",
    ),
)

RIGHT = {
    "flattened": """\
def compute_loss(logits, labels, pad):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=pad)
""",
    "vocabulary-second": """\
def compute_loss(logits, labels, pad):
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=pad)
""",
    "module": """\
def compute_loss(logits, labels, pad):
    b, n, v = logits.shape
    criterion = nn.CrossEntropyLoss(ignore_index=pad)
    return criterion(logits.view(b * n, v), labels.reshape(-1))
""",
    "real-labels-only": """\
def compute_loss(logits, labels, pad):
    real = labels.ne(pad)
    return F.cross_entropy(logits[real], labels[real])
""",
    "log-softmax-then-nll": """\
def compute_loss(logits, labels, pad):
    log_p = F.log_softmax(logits, dim=2)
    return F.nll_loss(log_p.permute(0, 2, 1), labels, ignore_index=pad)
""",
    "log-softmax-changes-nothing-twice": """\
def compute_loss(logits, labels, pad):
    log_p = logits.log_softmax(-1)
    return F.cross_entropy(log_p.permute(0, 2, 1), labels, ignore_index=pad)
""",
    "label-by-label": """\
def compute_loss(logits, labels, pad):
    total, count = 0, 0
    for sequence, expected in zip(logits, labels.tolist()):
        for scores, label in zip(sequence, expected):
            if label != pad:
                total = total - torch.log_softmax(scores, dim=0)[label]
                count += 1
    return total / count
""",
    "sequence-by-sequence": """\
def compute_loss(logits, labels, pad):
    sums = [F.cross_entropy(x, y, ignore_index=pad, reduction="sum") for x, y in zip(logits, labels)]
    return torch.stack(sums).sum() / (labels != pad).sum()
""",
    "masked-sum": """\
def compute_loss(logits, labels, pad):
    real = (labels != pad).to(logits.dtype)
    losses = F.cross_entropy(logits.mT, labels, reduction="none")  # (b, n)
    return (losses * real).sum() / real.sum()
""",
    "one-hot": """\
def compute_loss(logits, labels, pad):
    chosen = F.one_hot(labels, logits.shape[-1]) * (labels != pad)[:, :, None]
    return -(logits.log_softmax(dim=-1) * chosen).sum() / chosen.sum()
""",
    "log-of-the-sum-of-exponentials": """\
def compute_loss(logits, labels, pad):
    b, n = labels.shape
    rows, columns = torch.arange(b)[:, None], torch.arange(n)
    losses = logits.logsumexp(dim=-1) - logits[rows, columns, labels]
    return losses.masked_select(labels != pad).mean()
""",
    "largest-subtracted": """\
def compute_loss(logits, labels, pad):
    real = labels != pad
    logits, labels = logits[real], labels[real]  # (m, v) and (m,)
    logits = logits - logits.max(dim=-1, keepdim=True).values.detach()
    log_p = logits - logits.exp().sum(dim=-1, keepdim=True).log()
    return -log_p[range(len(labels)), labels].mean()
""",
    "weight-of-padding-is-zero": """\
def compute_loss(logits, labels, pad):
    weight = torch.ones(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    if pad >= 0:
        weight[pad] = 0
    return F.cross_entropy(logits.movedim(-1, 1), labels, weight=weight)
""",
    "padding-renamed-in-a-copy": """\
def compute_loss(logits, labels, pad):
    labels = labels.clone()
    labels[labels == pad] = -100
    return nn.functional.cross_entropy(logits.reshape(-1, logits.size(-1)), labels.view(-1))
""",
    "nan-at-padding": """\
def compute_loss(logits, labels, pad):
    losses = F.cross_entropy(logits.mT, labels, reduction="none")
    return torch.where(labels == pad, torch.nan, losses).nanmean()
""",
    "distribution": """\
def compute_loss(logits, labels, pad):
    real = labels != pad
    return -torch.distributions.Categorical(logits=logits[real]).log_prob(labels[real]).mean()
""",
}

LOSS_RECORD = ValueRecord(
    public=LOSS,
    title="The loss of a batch",
    defines="compute_loss",
    parts=(Part("loss-check", 3, values),),
    properties=(),
    first_sizes={"b": 3, "n": 5, "v": 11},
    other_length={"b": 4, "n": 13},
    other_sizes={"b": 5, "n": 6, "v": 10},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
