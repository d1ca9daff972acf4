"""The exercise of topic 04 about a language model's inputs and labels, the next token at each position."""

import itertools
import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import misbehaviours
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.topic_04_language_model.labels import LABELS


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return a batch in which every token occurs once, so that a token at a wrong position shows."""
    b, length = sizes["b"], sizes["n"] + 1
    tokens = sorted(range(1, b * length + 1), key=lambda token: rng.random())
    return {"batch": np.array(tokens).reshape(b, length)}


def reference(case: Arrays) -> Arrays:
    """Return inputs and labels, by pairs of neighbouring tokens."""
    pairs = np.array([list(itertools.pairwise(tokens)) for tokens in case["batch"].tolist()])  # (b, n, 2)
    return {"inputs": pairs[:, :, 0].astype(np.float64), "labels": pairs[:, :, 1].astype(np.float64)}


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def batch_to_labeled_samples(batch):
    inputs = batch[:, :-1]
    labels = batch[:, 1:]
    return inputs, labels
"""

INPUTS = "batch[:, :-1]"
SHIFTED = "batch[:, 1:]"


def wrong(name: str, inputs: str = INPUTS, labels: str = SHIFTED, hint: str = "") -> WrongAnswer:
    """Return the answer that slices inputs or labels in another way."""
    edits = ((f"inputs = {INPUTS}", f"inputs = {inputs}"), (f"labels = {SHIFTED}", f"labels = {labels}"))
    return edited(name, MODEL_ANSWER, *edits, hint=hint)


WRONG = (
    wrong("not-shifted", labels="batch[:, :-1]"),
    wrong("shifted-twice", inputs="batch[:, :-2]", labels="batch[:, 2:]"),
    wrong("labels-shifted-twice", labels="batch[:, 2:]"),
    wrong("label-after-next", labels="batch[:, 1:].roll(-1, dims=1)"),
    wrong("exchanged", inputs="batch[:, 1:]", labels="batch[:, :-1]"),
    wrong("shifted-right", labels="batch[:, :-1].roll(1, dims=1)"),
    wrong("both-without-the-first", inputs="batch[:, 1:]"),
    wrong("first-token-lost", inputs="batch[:, 1:-1]", labels="batch[:, 2:]"),
    wrong("wraps-around", inputs="batch", labels="batch.roll(-1, dims=1)"),
    wrong("rolled-through-the-batch", inputs="batch", labels="batch.roll(-1)"),
    wrong("inputs-rolled", labels="batch[:, :-1].roll(-1, dims=1)"),
    wrong("last-label-invented", labels="F.pad(batch[:, 1:-1], (0, 1))"),
    wrong("label-for-the-last-token-too", inputs="batch", labels="F.pad(batch[:, 1:], (0, 1))"),
    wrong("inputs-not-cut", inputs="batch"),
    wrong("labels-not-cut", labels="batch"),
    wrong("the-batch-twice", inputs="batch", labels="batch"),
    wrong("last-token-only", labels="batch[:, -1:]"),
    wrong("last-token-without-an-axis", labels="batch[:, -1]"),
    wrong("sequences-shifted", inputs="batch[:-1]", labels="batch[1:]"),
    wrong("labels-of-the-next-sequence", labels="batch[:, 1:].roll(-1, dims=0)"),
    wrong("numbers-raised", labels="batch[:, :-1] + 1"),
    wrong("every-other-token", inputs="batch[:, ::2]", labels="batch[:, 1::2]"),
    wrong("cut-into-halves", inputs="batch[:, : batch.shape[1] // 2]", labels="batch[:, batch.shape[1] // 2 :]"),
    wrong("labels-reversed", labels="batch[:, 1:].flip(1)"),
    wrong("first-sequence-only", inputs="batch[:1, :-1]", labels="batch[:1, 1:]"),
    wrong("one-hot", labels="F.one_hot(batch[:, 1:])"),
    wrong("labels-flattened", labels="batch[:, 1:].flatten()"),
    wrong("positions-first", inputs="batch[:, :-1].T", labels="batch[:, 1:].T"),
)

BEHAVIOURS = misbehaviours(MODEL_ANSWER, "batch_to_labeled_samples", longer=(4, 14))

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name not in ("changes-its-input", "cuts-the-gradient")),  # whole numbers
    edited("labels-alone", MODEL_ANSWER, ("return inputs, labels", "return labels"), hint="not-two-values"),
    edited("list-of-pairs", MODEL_ANSWER, ("inputs, labels\n", "list(zip(inputs, labels))\n"), hint="not-two-values"),
    edited("nothing-returned", MODEL_ANSWER, ("    return inputs, labels\n", ""), hint="not-two-values"),
    wrong("labels-of-floats", labels="batch[:, 1:].float()", hint="labels-not-long"),
    wrong("of-short-numbers", inputs="batch[:, :-1].int()", labels="batch[:, 1:].int()", hint="labels-not-long"),
    wrong("rows-as-lists", labels="batch[:, 1:].tolist()", hint="not-a-tensor"),
    wrong(
        "shifts-the-batch-itself",
        inputs="batch[:, :-1].clone()",
        labels="batch[:, :-1].copy_(batch[:, 1:].clone())",
        hint="input-changed",
    ),
)

RIGHT = {
    "one-line": """\
def batch_to_labeled_samples(batch):
    return batch[:, :-1], batch[:, 1:]
""",
    "narrowed": """\
def batch_to_labeled_samples(batch):
    n = batch.shape[1] - 1
    return batch.narrow(1, 0, n), batch.narrow(1, 1, n)
""",
    "rolled-then-cut": """\
def batch_to_labeled_samples(batch):
    shifted = torch.roll(batch, shifts=-1, dims=1)
    return [batch[:, :-1], shifted[:, :-1]]
""",
    "rolled-through-the-batch-then-cut": """\
def batch_to_labeled_samples(batch):
    inputs, labels = (tokens[:, :-1] for tokens in (batch, batch.roll(-1)))
    return inputs, labels
""",
    "windows": """\
def batch_to_labeled_samples(batch):
    pairs = batch.unfold(dimension=1, size=2, step=1)  # (b, n, 2)
    return pairs[:, :, 0], pairs[:, :, 1]
""",
    "unbound-windows": """\
def batch_to_labeled_samples(batch):
    return batch.unfold(1, 2, 1).unbind(dim=-1)
""",
    "gathered": """\
def batch_to_labeled_samples(batch):
    places = torch.arange(batch.shape[1] - 1, device=batch.device)
    return batch.index_select(1, places), torch.index_select(batch, 1, places + 1)
""",
    "token-by-token": """\
def batch_to_labeled_samples(batch):
    b, length = batch.shape
    inputs = torch.empty(b, length - 1, dtype=torch.long, device=batch.device)
    labels = torch.empty_like(inputs)
    for sequence in range(b):
        for position in range(length - 1):
            inputs[sequence, position] = batch[sequence, position]
            labels[sequence, position] = batch[sequence, position + 1]
    return inputs, labels
""",
    "sequence-by-sequence": """\
def batch_to_labeled_samples(batch):
    inputs = torch.stack([tokens[:-1] for tokens in batch])
    labels = torch.stack([tokens[1:] for tokens in batch])
    return inputs, labels
""",
    "column-by-column": """\
def batch_to_labeled_samples(batch):
    columns = batch.unbind(dim=1)
    return torch.stack(columns[:-1], dim=1), torch.stack(columns[1:], dim=1)
""",
    "contiguous-copies": """\
def batch_to_labeled_samples(batch):
    inputs, _ = batch.split([batch.size(1) - 1, 1], dim=1)
    _, labels = batch.split([1, batch.size(1) - 1], dim=1)
    return inputs.contiguous(), labels.contiguous()
""",
    "negative-padding": """\
def batch_to_labeled_samples(batch):
    return F.pad(batch, (0, -1)), F.pad(batch, (-1, 0))
""",
    "python-lists": """\
def batch_to_labeled_samples(batch):
    rows = batch.tolist()
    inputs = torch.tensor([row[:-1] for row in rows], device=batch.device)
    labels = torch.tensor([row[1:] for row in rows], device=batch.device)
    return inputs, labels
""",
}

LABELS_RECORD = ValueRecord(
    public=LABELS,
    title="A label for each position",
    defines="batch_to_labeled_samples",
    parts=(Part("labels-check", 2, values),),
    properties=(SEQUENCES_APART, input_matters("inputs", "labels")),
    first_sizes={"b": 3, "n": 7},
    other_length={"b": 4, "n": 13},
    other_sizes={"b": 5, "n": 12},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
