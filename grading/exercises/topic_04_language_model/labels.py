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


def wrong(name: str, hint: str, inputs: str = INPUTS, labels: str = SHIFTED) -> WrongAnswer:
    """Return the answer that slices inputs or labels in another way."""
    edits = ((f"inputs = {INPUTS}", f"inputs = {inputs}"), (f"labels = {SHIFTED}", f"labels = {labels}"))
    return edited(name, hint, MODEL_ANSWER, *edits)


WRONG = (
    wrong(
        "not-shifted",
        "The labels are the inputs themselves: a model that copies what it reads would be right everywhere.",
        labels="batch[:, :-1]",
    ),
    wrong(
        "shifted-twice",
        "The labels are two tokens ahead of the inputs: each position should expect the very next one.",
        inputs="batch[:, :-2]",
        labels="batch[:, 2:]",
    ),
    wrong(
        "labels-shifted-twice",
        "The labels are two tokens ahead of the inputs, and one fewer: the token in between is never expected.",
        labels="batch[:, 2:]",
    ),
    wrong(
        "label-after-next",
        "The labels are shifted once more after the cut: they are two tokens ahead, and the last ones wrap around.",
        labels="batch[:, 1:].roll(-1, dims=1)",
    ),
    wrong(
        "exchanged",
        "Inputs and labels are exchanged: the model would be asked for the token before the one it reads.",
        inputs="batch[:, 1:]",
        labels="batch[:, :-1]",
    ),
    wrong(
        "shifted-right",
        "The labels are shifted to the right: each position is asked for the token before it.",
        labels="batch[:, :-1].roll(1, dims=1)",
    ),
    wrong(
        "both-without-the-first",
        "The inputs lack the first token: the model would read at each position what it should predict there.",
        inputs="batch[:, 1:]",
    ),
    wrong(
        "first-token-lost",
        "The first token of each sequence is in neither inputs nor labels: the model should read it.",
        inputs="batch[:, 1:-1]",
        labels="batch[:, 2:]",
    ),
    wrong(
        "wraps-around",
        "The last position should expect the first token: rolling wraps around, but after the end nothing is known.",
        inputs="batch",
        labels="batch.roll(-1, dims=1)",
    ),
    wrong(
        "rolled-through-the-batch",
        "The last position should expect the first token of the next sequence: rolling goes on from row to row.",
        inputs="batch",
        labels="batch.roll(-1)",
    ),
    wrong(
        "inputs-rolled",
        "The last label is the first input: the token that really follows stands at the end of the batch.",
        labels="batch[:, :-1].roll(-1, dims=1)",
    ),
    wrong(
        "last-label-invented",
        "The labels end in 0, an invented token: the one that really follows stands at the end of the batch.",
        labels="F.pad(batch[:, 1:-1], (0, 1))",
    ),
    wrong(
        "label-for-the-last-token-too",
        "The last token is among the inputs, with a label of 0: nobody knows what follows it, so leave it out.",
        inputs="batch",
        labels="F.pad(batch[:, 1:], (0, 1))",
    ),
    wrong(
        "inputs-not-cut",
        "The last token of each sequence is among the inputs: what should follow it is not known.",
        inputs="batch",
    ),
    wrong(
        "labels-not-cut",
        "There is a label more than there are inputs: the first token follows nothing that the model reads.",
        labels="batch",
    ),
    wrong(
        "the-batch-twice",
        "Inputs and labels are the whole batch: a label is the token that comes after its input.",
        inputs="batch",
        labels="batch",
    ),
    wrong(
        "last-token-only",
        "Only the last token of each sequence is a label: every position has a next token to learn from.",
        labels="batch[:, -1:]",
    ),
    wrong(
        "last-token-without-an-axis",
        "There is one label for a whole sequence: every position has a next token to learn from.",
        labels="batch[:, -1]",
    ),
    wrong(
        "sequences-shifted",
        "The shift runs over the batch: a sequence gets the next sequence as its labels.",
        inputs="batch[:-1]",
        labels="batch[1:]",
    ),
    wrong(
        "labels-of-the-next-sequence",
        "Each sequence gets the labels of the next one: the batch is shifted, too.",
        labels="batch[:, 1:].roll(-1, dims=0)",
    ),
    wrong(
        "numbers-raised",
        "The labels are the numbers of the inputs plus 1: it is the place that moves by one, not the number.",
        labels="batch[:, :-1] + 1",
    ),
    wrong(
        "every-other-token",
        "Tokens are inputs and labels by turns: every token but the last should be read.",
        inputs="batch[:, ::2]",
        labels="batch[:, 1::2]",
    ),
    wrong(
        "cut-into-halves",
        "The second half of each sequence is the label of the first: each token has its own next one.",
        inputs="batch[:, : batch.shape[1] // 2]",
        labels="batch[:, batch.shape[1] // 2 :]",
    ),
    wrong(
        "labels-reversed",
        "The labels run backwards: the first position should expect the second token.",
        labels="batch[:, 1:].flip(1)",
    ),
    wrong(
        "first-sequence-only",
        "Only the first sequence of the batch is left: all of them are to be learned from.",
        inputs="batch[:1, :-1]",
        labels="batch[:1, 1:]",
    ),
    wrong(
        "one-hot",
        "The labels are one-hot vectors: the number of the token is enough, and far shorter.",
        labels="F.one_hot(batch[:, 1:])",
    ),
    wrong(
        "labels-flattened",
        "The labels of all sequences stand in one row: keep a row for each sequence, as the inputs have.",
        labels="batch[:, 1:].flatten()",
    ),
    wrong(
        "positions-first",
        "Positions come before sequences: the batch is the first axis, as everywhere.",
        inputs="batch[:, :-1].T",
        labels="batch[:, 1:].T",
    ),
)

BOTH = "Hand back both: what the model reads, and what it should expect at each position."
NOT_LONG = "Tokens stay what they are in the batch: whole numbers, of dtype torch.long."
CHANGED = "Something works in place, such as `+=` or a method that ends in `_`: make a new tensor instead."
BEHAVIOURS = misbehaviours(MODEL_ANSWER, "batch_to_labeled_samples", longer=(4, 14))

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name not in ("changes-its-input", "cuts-the-gradient")),  # whole numbers
    edited("labels-alone", BOTH, MODEL_ANSWER, ("return inputs, labels", "return labels")),
    edited("list-of-pairs", BOTH, MODEL_ANSWER, ("inputs, labels\n", "list(zip(inputs, labels))\n")),
    edited("nothing-returned", BOTH, MODEL_ANSWER, ("    return inputs, labels\n", "")),
    wrong("labels-of-floats", NOT_LONG, labels="batch[:, 1:].float()"),
    wrong("of-short-numbers", NOT_LONG, inputs="batch[:, :-1].int()", labels="batch[:, 1:].int()"),
    wrong("rows-as-lists", "Return labels as one tensor.", labels="batch[:, 1:].tolist()"),
    wrong(
        "shifts-the-batch-itself",
        CHANGED,
        inputs="batch[:, :-1].clone()",
        labels="batch[:, :-1].copy_(batch[:, 1:].clone())",
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
