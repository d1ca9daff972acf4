"""The exercise of topic 03 about self-attention without parameters, with a padding mask."""

import random
from dataclasses import replace

from grading.judging.judge import part_values
from grading.judging.mistakes import (
    KEYS_VIEWED,
    SCALED_BY_LENGTH,
    SOFTMAX,
    misbehaviours,
    only_in_training,
    overflowing_softmax,
    softmax_mistakes,
)
from grading.judging.padded_batches import (
    HIDE,
    SIZES,
    attended,
    draw_batch,
    ignores_padding,
    is_right,
    padding,
    padding_mistakes,
)
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited, softmax
from transformer_lm.checks.engine.calling import OTHER_SIZES
from transformer_lm.checks.engine.ready_made import READY_MADE
from transformer_lm.checks.topic_03_classification.padded_layers import NO_KEY
from transformer_lm.checks.topic_03_classification.simple_attention import SIMPLE_ATTENTION

WHOLE, PADDING = "simple-attention-check", "simple-attention-padding"
BOTH = (WHOLE, PADDING)


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return a batch with padding."""
    return draw_batch(rng, sizes, sizes["hidden"], bound=0.75)


def reference(case: Arrays) -> Arrays:
    """Return each position's average over the real tokens of its sequence."""
    return attended(case, lambda x: softmax(x @ x.T) @ x)


MODEL_ANSWER = """\
class SimpleSelfAttention(nn.Module):
    def forward(self, x, visible):
        b, n, hidden = x.shape
        scores = x @ x.transpose(1, 2)  # (b, n, n)
        unreadable = ~visible[:, None, :]  # (b, 1, n)
        scores = scores.masked_fill(unreadable, -math.inf)
        weights = scores.softmax(dim=-1)
        return weights @ x
"""

SCORES = "x @ x.transpose(1, 2)"
AVERAGE = "weights @ x"


def wrong(name: str, hint: str, *edits: tuple[str, str], fails: tuple[str, ...] = (WHOLE,)) -> WrongAnswer:
    """Return the answer with a mistake that has nothing to do with padding."""
    return edited(name, hint, MODEL_ANSWER, *edits, fails=fails)


WRONG = (
    wrong(
        "scaled",
        "The scores are divided by the root of the width: here they are the dot products as they are.",
        (SCORES, f"{SCORES} / hidden**0.5"),
    ),
    wrong(
        "scaled-by-width",
        "The scores are divided by the width: here they are the dot products as they are.",
        (SCORES, f"{SCORES} / hidden"),
    ),
    wrong("scaled-by-length", SCALED_BY_LENGTH, (SCORES, f"{SCORES} / n**0.5")),
    wrong(
        "scores-of-directions",
        "The vectors are made equally long before they are compared: a dot product takes them as they are.",
        (SCORES, "F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).transpose(1, 2)"),
    ),
    wrong("scores-viewed", KEYS_VIEWED, (SCORES, "x @ x.reshape(b, hidden, n)"), fails=BOTH),
    wrong(
        "features-read-features",
        "The scores compare features with each other: positions should read positions.",
        (SCORES, "x.transpose(1, 2) @ x"),
        (HIDE, "scores"),
        (AVERAGE, "x @ weights"),
        fails=BOTH,
    ),
    *(
        replace(mistake, fails=(WHOLE,) if mistake.name == "not-normalised" else BOTH)
        for mistake in softmax_mistakes(MODEL_ANSWER)
    ),
    wrong(
        "hardmax",
        "Each position reads its best match only: the weights are an argmax, not a softmax.",
        (SOFTMAX, "F.one_hot(scores.argmax(dim=-1), n).to(x.dtype)"),
    ),
    wrong(
        "equal-weights",
        "All real tokens get the same weight: how well they match the query has no effect.",
        (SOFTMAX, "scores.isfinite() / scores.isfinite().sum(dim=-1, keepdim=True)"),
    ),
    wrong(
        "weights-returned",
        "These are the weights; what is asked for is the average that they make of x.",
        (AVERAGE, "weights"),
        fails=BOTH,
    ),
    wrong(
        "residual", "The input is added on top: the weighted average alone is asked for.", (AVERAGE, "weights @ x + x")
    ),
    wrong(
        "causal",
        "The future is hidden: here every position reads what comes after it too.",
        (HIDE, f"{HIDE}.masked_fill(torch.ones(n, n, device=x.device).triu(1).bool(), -math.inf)"),
    ),
    wrong(
        "without-itself",
        "No position reads itself: it is one of those that it may read.",
        (HIDE, f"{HIDE}.masked_fill(torch.eye(n, device=x.device).bool(), -1e9)"),
    ),
    wrong("unchanged", "The input comes back as it is: nothing is read.", (AVERAGE, "x.clone()"), fails=BOTH),
    *padding_mistakes(MODEL_ANSWER, WHOLE, PADDING),
)

MISBEHAVING = (
    *misbehaviours(MODEL_ANSWER, "SimpleSelfAttention.forward", longer=(2, 13), calls=2, parts=BOTH),
    only_in_training(MODEL_ANSWER, "SimpleSelfAttention.forward", BOTH),
    edited("mask-of-queries", NO_KEY, MODEL_ANSWER, ("[:, None, :]", "[:, :, None]")),
    edited(
        "queries-hidden-too",
        NO_KEY,
        MODEL_ANSWER,
        ("~visible[:, None, :]", "~(visible[:, None, :] & visible[:, :, None])"),
    ),
    overflowing_softmax(MODEL_ANSWER, fails=BOTH),
    edited(
        "fixed-length",
        OTHER_SIZES,
        MODEL_ANSWER,
        (SIZES, f"{SIZES}        x = x[:, :17]; visible = visible[:, :17]\n"),
        fails=BOTH,
    ),
    edited(
        "output-and-weights", "Return whole as one tensor.", MODEL_ANSWER, (AVERAGE, "weights @ x, weights"), fails=BOTH
    ),
    edited("nothing-returned", "Return whole as one tensor.", MODEL_ANSWER, (f"return {AVERAGE}", AVERAGE), fails=BOTH),
    edited(
        "no-module",
        "Derive your class from nn.Module, and give the check the class itself.",
        MODEL_ANSWER,
        ("(nn.Module)", ""),
        fails=BOTH,
    ),
    edited(
        "ready-made",
        READY_MADE,
        MODEL_ANSWER,
        (f"return {AVERAGE}", "return F.scaled_dot_product_attention(x, x, x, ~unreadable, scale=1)"),
        fails=BOTH,
    ),
)

FORWARDS = {
    "einsum": """\
    def forward(self, x, visible):
        scores = torch.einsum("bid,bjd->bij", x, x)
        scores = torch.where(visible.unsqueeze(1), scores, float("-inf"))
        return torch.einsum("bij,bjd->bid", F.softmax(scores, dim=2), x)
""",
    "added-mask": """\
    def forward(self, x, visible):
        bias = (~visible).to(x.dtype)[:, None, :] * -1e9
        return torch.softmax(torch.bmm(x, x.mT) + bias, dim=-1).bmm(x)
""",
    "logarithm-of-the-mask": """\
    def forward(self, x, visible):
        bias = visible.to(x.dtype).log().unsqueeze(-2)
        return (x @ x.mT + bias).log_softmax(dim=-1).exp() @ x
""",
    "shared-out-again": """\
    def forward(self, x, visible):
        weights = F.softmax(x @ x.permute(0, 2, 1), dim=-1) * visible[:, None]
        return weights / weights.sum(dim=-1, keepdim=True) @ x
""",
    "own-softmax": """\
    def forward(self, x, visible):
        scores = x @ x.mT
        exponentials = (scores - scores.amax(dim=-1, keepdim=True)).exp() * visible.unsqueeze(1)
        return exponentials @ x / exponentials.sum(dim=-1, keepdim=True)
""",
    "queries-hidden-too-by-a-number": """\
    def forward(self, x, visible):
        both = visible[:, :, None] & visible[:, None, :]
        scores = torch.matmul(x, x.transpose(-2, -1)).masked_fill(both == 0, torch.finfo(x.dtype).min)
        return torch.matmul(scores.softmax(-1), x)
""",
    "no-nan-left": """\
    def forward(self, x, visible):
        both = visible[:, :, None] & visible[:, None, :]
        weights = (x @ x.mT).masked_fill(~both, -torch.inf).softmax(-1).nan_to_num(0)
        return weights @ x
""",
    "zero-at-padding": """\
    def forward(self, x, visible):
        scores = (x @ x.mT).masked_fill(visible.logical_not()[:, None], -1e4)
        return (scores.softmax(-1) @ x).masked_fill(~visible[..., None], 0)
""",
    "each-sequence-cut": """\
    def forward(self, x, visible):
        rows = []
        for sequence, real in zip(x, visible):
            words = sequence[real]
            rows.append(F.softmax(sequence @ words.T, dim=1) @ words)
        return torch.stack(rows)
""",
    "lengths": """\
    def forward(self, x, visible):
        output = torch.zeros_like(x)
        for number, length in enumerate(visible.sum(dim=1).tolist()):
            words = x[number, :length]
            output[number, :length] = (words @ words.T).softmax(dim=-1) @ words
        return output
""",
    "query-by-query": """\
    def forward(self, x, visible):
        columns = []
        for query in x.unbind(dim=1):
            scores = (x * query[:, None]).sum(dim=-1).masked_fill(~visible, -math.inf)
            columns.append((scores.softmax(dim=-1)[..., None] * x).sum(dim=1))
        return torch.stack(columns, dim=1)
""",
    "masked-in-place": """\
    def forward(self, x, visible=None):
        b, n, _ = x.shape
        scores = torch.baddbmm(x.new_zeros(b, n, n), x, x.mT)
        scores[~visible[:, None, :].expand(b, n, n)] = float("-inf")
        return scores.softmax(dim=-1) @ x
""",
    "float64": """\
    def forward(self, x, visible):
        x = x.double()
        return (x @ x.mT).masked_fill(~visible[:, None], -torch.inf).softmax(-1) @ x
""",
}

SIMPLE_ATTENTION_RECORD = ValueRecord(
    public=SIMPLE_ATTENTION,
    title="Simple self-attention that does not read padding",
    defines="SimpleSelfAttention",
    parts=(Part(WHOLE, 2, part_values(is_right("whole"))), Part(PADDING, 2, padding)),
    properties=(SEQUENCES_APART, input_matters("whole", "padded"), ignores_padding("padded")),
    first_sizes={"b": 3, "n": 7, "hidden": 5},
    other_length={"b": 2, "n": 13},
    other_sizes={"b": 4, "n": 6, "hidden": 10, "magnitude": 8},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right={name: f"class SimpleSelfAttention(nn.Module):\n{forward}" for name, forward in FORWARDS.items()},
)
