"""The exercise of topic 04 about the loss: the cross-entropy of the real next tokens."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import CUT, misbehaviours
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.engine.calling import OTHER_LENGTH
from transformer_lm.checks.engine.contract import NOT_YOURS
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
    name: str, hint: str, real: str = REAL, log_p: str = LOG_P, losses: str = LOSSES, returned: str = MEAN
) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, hint, MODEL_ANSWER, (REAL, real), (LOG_P, log_p), (LOSSES, losses), (MEAN, returned))


OVERFLOW = "Right for small logits only: e to a large power overflows, and the log of 0 is -inf. Use a stable way."
LAST_LEFT_OUT = (
    "With pad=-1 no label is padding, but that of the last token is left out: an index of -1 counts from the end."
)

WRONG = (
    wrong(
        "padding-predicted",
        "Padding counts as a label: the model should not have to predict what fills up a sequence.",
        returned="losses.mean()",
    ),
    wrong(
        "averaged-over-padding",
        "The losses at padding are 0, but still counted in the mean: divide by the number of real labels.",
        returned="(losses * real).mean()",
    ),
    wrong(
        "mask-inverted",
        "The mask is inverted: the mean is over the padding, and all real labels are left out.",
        real="labels == pad",
    ),
    wrong(
        "zero-taken-for-padding",
        "The token 0 is taken for padding: which token that is, `pad` tells.",
        real="labels != 0",
    ),
    wrong(
        "softmax-twice",
        "The softmax is applied twice: probabilities go in where logits belong.",
        log_p="logits.softmax(dim=-1).log_softmax(dim=-1)",
    ),
    wrong(
        "softmax-over-positions",
        "The softmax runs over the positions: at each position the tokens of the vocabulary compete.",
        log_p="logits.log_softmax(dim=1)",
    ),
    wrong(
        "softmax-over-batch",
        "The softmax runs over the batch: at each position the tokens of the vocabulary compete.",
        log_p="logits.log_softmax(dim=0)",
    ),
    wrong(
        "no-softmax",
        "The logits themselves are taken for log probabilities: nothing makes their probabilities sum to 1.",
        log_p="logits",
    ),
    wrong(
        "no-logarithm",
        "The logarithm is missing: this is minus the mean probability of the labels.",
        log_p="logits.softmax(dim=-1)",
    ),
    wrong(
        "probability-missed",
        "This is the mean of 1 minus the probability: the loss takes a logarithm.",
        log_p="logits.softmax(dim=-1) - 1",
    ),
    wrong(
        "log-of-mean",
        "The probabilities are averaged before the logarithm: take it of each of them, then the mean.",
        returned="-(-losses[real]).exp().mean().log()",
    ),
    wrong(
        "sign-missing",
        "The sign is missing: logarithms of probabilities are below 0, and a loss is above.",
        returned="-losses[real].mean()",
    ),
    wrong(
        "bits",
        "The loss is in bits: the natural logarithm is asked for here.",
        returned="losses[real].mean() / math.log(2)",
    ),
    wrong(
        "decimal-logarithm",
        "The logarithm is that of base 10: the natural one is asked for.",
        returned="losses[real].mean() / math.log(10)",
    ),
    wrong(
        "perplexity",
        "This is e to the power of the loss, the perplexity: return the loss itself.",
        returned="losses[real].mean().exp()",
    ),
    wrong(
        "summed",
        "The losses are added up: without a division, a longer batch has a larger loss.",
        returned="losses[real].sum()",
    ),
    wrong(
        "divided-by-sequences",
        "The sum is divided by the number of sequences: it is the labels that are averaged.",
        returned="losses[real].sum() / b",
    ),
    wrong(
        "divided-by-positions",
        "The sum is divided by the number of positions: it is the labels of all sequences that are averaged.",
        returned="losses[real].sum() / n",
    ),
    wrong(
        "divided-by-vocabulary",
        "The mean is divided by the size of the vocabulary, too: each label has one loss, not v of them.",
        returned="losses[real].mean() / v",
    ),
    wrong(
        "mean-of-means",
        "The mean of each sequence is taken first: a label in a short sequence counts more than one in a long one.",
        returned="((losses * real).sum(dim=1) / real.sum(dim=1)).mean()",
    ),
    wrong(
        "mean-of-positions",
        "The mean of each position is taken first: where few sequences reach, a label counts more than elsewhere.",
        returned="((losses * real).sum(dim=0) / real.sum(dim=0)).mean()",
    ),
    wrong(
        "last-position-only",
        "Only the last position counts: every position with a real label should.",
        returned="losses[:, -1][real[:, -1]].mean()",
    ),
    wrong(
        "first-position-only",
        "Only the first position counts: every position with a real label should.",
        returned="losses[:, 0][real[:, 0]].mean()",
    ),
    wrong(
        "first-sequence-only",
        "Only the first sequence counts: all real labels of the batch should.",
        returned="losses[0][real[0]].mean()",
    ),
    wrong(
        "shifted-again",
        "Logits and labels are shifted once more: the labels were made one token ahead already.",
        losses="-log_p[:, :-1].gather(-1, labels[:, 1:, None])[:, :, 0]",
        returned="losses[real[:, 1:]].mean()",
    ),
    wrong(
        "shifted-back",
        "Each label meets the logits of the next position: they stand at the same position as it does.",
        losses="-log_p[:, 1:].gather(-1, labels[:, :-1, None])[:, :, 0]",
        returned="losses[real[:, :-1]].mean()",
    ),
    wrong(
        "axes-by-view",
        "The vocabulary is put second by view or reshape, which swaps no axes: it cuts the row of numbers anew.",
        losses='F.cross_entropy(logits.view(b, v, n), labels, reduction="none")',
    ),
    wrong(
        "best-guess",
        "This is the loss of the model's best guess, whatever the label is.",
        losses="-log_p.amax(dim=-1)",
    ),
    wrong(
        "entropy",
        "This is the entropy of what the model expects: the labels have no effect.",
        losses="-(log_p.exp() * log_p).sum(dim=-1)",
    ),
    wrong(
        "squared-error",
        "This is the squared distance from a one-hot vector: the loss is a logarithm of one probability.",
        losses="(log_p.exp() - F.one_hot(labels, v)).square().sum(dim=-1)",
    ),
    wrong(
        "accuracy",
        "This is the share of labels that the model guesses: no gradient flows from it.",
        returned="(logits.argmax(dim=-1) == labels)[real].to(logits.dtype).mean()",
    ),
    wrong(
        "padding-impossible",
        "The token of padding is left out of the softmax: it is in the vocabulary, and takes its share.",
        log_p="logits.index_fill(-1, torch.tensor([pad]), -math.inf).log_softmax(dim=-1)",
    ),
    wrong("log-of-softmax", OVERFLOW, log_p="logits.softmax(dim=-1).log()"),
    wrong(
        "log-of-softmax-times-mask",
        OVERFLOW,
        log_p="logits.softmax(dim=-1).log()",
        returned="(losses * real).sum() / real.sum()",
    ),
    *(
        wrong(
            f"kept-from-zero-by-{small}",
            "A small number is added before the logarithm: what the model thinks impossible then costs too little.",
            log_p=f"(logits.softmax(dim=-1) + {small}).log()",
        )
        for small in ("1e-6", "1e-7", "1e-8", "1e-9", "1e-10", "1e-12")
    ),
    wrong(
        "last-token-left-out",
        LAST_LEFT_OUT,
        log_p="logits.log_softmax(dim=-1)\n    real = labels != pad % v",
    ),
)

ONE_NUMBER = "One number for the whole batch is asked for, as a tensor without any axes, so that gradients flow."
CHANGED = "Something works in place, such as `+=` or a method that ends in `_`: make a new tensor instead."
VIEW = "The sizes fit, the order in memory does not: after `transpose`, `view` cannot cut and `reshape` can."
SHAPES = "Two shapes do not fit together there. Print the shape of each tensor just before that line."
BEHAVIOURS = misbehaviours(MODEL_ANSWER, "compute_loss", longer=(4, 13), calls=3)
TRIED = ("cuts-the-gradient", "differs-the-second-time", "fits-one-length", "fits-known-sizes")

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name in TRIED),
    WrongAnswer("the-package-s-own", NOT_YOURS, "from transformer_lm.lm import compute_loss\n"),
    wrong("not-averaged", ONE_NUMBER, returned="losses"),
    wrong("of-each-sequence", ONE_NUMBER, returned="(losses * real).sum(dim=1) / real.sum(dim=1)"),
    wrong("keeps-an-axis", ONE_NUMBER, returned="losses[real].mean(dim=0, keepdim=True)"),
    wrong("a-python-number", ONE_NUMBER, returned="losses[real].mean().item()"),
    edited("nothing-returned", ONE_NUMBER, MODEL_ANSWER, (f"return {MEAN}", MEAN)),
    wrong("a-new-tensor", CUT, returned="torch.tensor(losses[real].mean().item())"),
    wrong("log-of-sum-of-exponentials", OVERFLOW, log_p="logits - logits.exp().sum(dim=-1, keepdim=True).log()"),
    edited(
        "padding-renamed-in-place",
        CHANGED,
        MODEL_ANSWER,
        (MEAN, "F.cross_entropy(logits.mT, labels.masked_fill_(~real, -100))"),
    ),
    edited(
        "largest-subtracted-in-place",
        CHANGED,
        MODEL_ANSWER,
        ("    real =", "    logits -= logits.amax(dim=-1, keepdim=True).detach()\n    real ="),
    ),
    wrong("labels-viewed", VIEW, returned="F.cross_entropy(logits.view(-1, v), labels.view(-1), ignore_index=pad)"),
    wrong("vocabulary-last", SHAPES, returned="F.cross_entropy(logits, labels, ignore_index=pad)"),
    wrong("labels-without-an-axis", SHAPES, losses="-log_p.gather(-1, labels)"),
    edited(
        "weight-of-the-last-token-is-zero",
        LAST_LEFT_OUT,
        MODEL_ANSWER,
        ("    real =", "    weight = torch.ones(v, dtype=logits.dtype)\n    weight[pad] = 0\n    real ="),
        (MEAN, "F.cross_entropy(logits.mT, labels, weight=weight)"),
    ),
    wrong("fixed-sizes", OTHER_LENGTH, losses="-log_p.view(15, 11).gather(-1, labels.reshape(15, 1)).view(3, 5)"),
    edited(
        "first-padding-for-ever",
        OTHER_LENGTH,
        MODEL_ANSWER,
        ("def compute_loss(", "known = []\n\n\ndef compute_loss("),
        ("    real =", "    if pad != -1:\n        known.append(pad)\n        pad = known[0]\n    real ="),
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
