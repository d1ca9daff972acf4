"""The exercise of topic 03 about self-attention without parameters, with a padding mask."""

import random
from dataclasses import replace

from grading.judging.judge import part_values
from grading.judging.mistakes import (
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


def wrong(name: str, *edits: tuple[str, str], fails: tuple[str, ...] = (WHOLE,), hint: str = "") -> WrongAnswer:
    """Return the answer with a mistake that has nothing to do with padding."""
    return edited(name, MODEL_ANSWER, *edits, fails=fails, hint=hint)


WRONG = (
    wrong("scaled", (SCORES, f"{SCORES} / hidden**0.5")),
    wrong("scaled-by-width", (SCORES, f"{SCORES} / hidden")),
    wrong("scaled-by-length", (SCORES, f"{SCORES} / n**0.5")),
    wrong("scores-of-directions", (SCORES, "F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).transpose(1, 2)")),
    wrong("scores-viewed", (SCORES, "x @ x.reshape(b, hidden, n)"), fails=BOTH, hint="keys-viewed"),
    wrong(
        "features-read-features",
        (SCORES, "x.transpose(1, 2) @ x"),
        (HIDE, "scores"),
        (AVERAGE, "x @ weights"),
        fails=BOTH,
    ),
    *(
        replace(mistake, fails=(WHOLE,) if mistake.name == "not-normalised" else BOTH)
        for mistake in softmax_mistakes(MODEL_ANSWER)
    ),
    wrong("hardmax", (SOFTMAX, "F.one_hot(scores.argmax(dim=-1), n).to(x.dtype)")),
    wrong("equal-weights", (SOFTMAX, "scores.isfinite() / scores.isfinite().sum(dim=-1, keepdim=True)")),
    wrong("weights-returned", (AVERAGE, "weights"), fails=BOTH),
    wrong("residual", (AVERAGE, "weights @ x + x")),
    wrong("causal", (HIDE, f"{HIDE}.masked_fill(torch.ones(n, n, device=x.device).triu(1).bool(), -math.inf)")),
    wrong("without-itself", (HIDE, f"{HIDE}.masked_fill(torch.eye(n, device=x.device).bool(), -1e9)")),
    wrong("unchanged", (AVERAGE, "x.clone()"), fails=BOTH),
    *padding_mistakes(MODEL_ANSWER, WHOLE, PADDING),
)

MISBEHAVING = (
    *misbehaviours(MODEL_ANSWER, "SimpleSelfAttention.forward", longer=(2, 13), calls=2, parts=BOTH),
    only_in_training(MODEL_ANSWER, "SimpleSelfAttention.forward", BOTH),
    edited("mask-of-queries", MODEL_ANSWER, ("[:, None, :]", "[:, :, None]"), hint="no-key-left"),
    edited(
        "queries-hidden-too",
        MODEL_ANSWER,
        ("~visible[:, None, :]", "~(visible[:, None, :] & visible[:, :, None])"),
        hint="no-key-left",
    ),
    overflowing_softmax(MODEL_ANSWER, fails=BOTH),
    edited(
        "fixed-length",
        MODEL_ANSWER,
        (SIZES, f"{SIZES}        x = x[:, :17]; visible = visible[:, :17]\n"),
        fails=BOTH,
        hint="other-sizes",
    ),
    edited("output-and-weights", MODEL_ANSWER, (AVERAGE, "weights @ x, weights"), fails=BOTH, hint="not-a-tensor"),
    edited("nothing-returned", MODEL_ANSWER, (f"return {AVERAGE}", AVERAGE), fails=BOTH, hint="not-a-tensor"),
    edited("no-module", MODEL_ANSWER, ("(nn.Module)", ""), fails=BOTH, hint="not-a-module"),
    edited(
        "ready-made",
        MODEL_ANSWER,
        (f"return {AVERAGE}", "return F.scaled_dot_product_attention(x, x, x, ~unreadable, scale=1)"),
        fails=BOTH,
        hint="ready-made-attention",
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
    title="Simple self-attention that ignores padding",
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
