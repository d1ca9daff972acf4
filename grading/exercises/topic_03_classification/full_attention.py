"""The exercise of topic 03 about multi-head self-attention with a padding mask, with heads as a batch dimension."""

import math
import random
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from grading.judging.judge import part_values
from grading.judging.mistakes import (
    SOFTMAX,
    misbehaviours,
    only_in_training,
    score_mistakes,
    softmax_mistakes,
)
from grading.judging.padded_batches import attended, draw_batch, ignores_padding, is_right, padding, padding_mistakes
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited, softmax
from transformer_lm.checks.topic_03_classification.full_attention import FULL_ATTENTION

WHOLE, PADDING = "full-attention-check", "full-attention-padding"
BOTH = (WHOLE, PADDING)


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return a batch with padding and the weights of four layers whose outputs have about the spread of their inputs.

    The inputs at padding are halved. Otherwise their scores would be far larger than all others.
    """
    hidden = sizes["num_heads"] * sizes["head_size"]
    case = draw_batch(rng, sizes, hidden, bound=1) | {"num_heads": np.array(sizes["num_heads"])}
    case["x"][~case["visible"]] /= 2
    for layer in ("q", "k", "v", "mix"):
        case[f"{layer}_weight"] = dyadic(rng, hidden, hidden, bound=3 / math.sqrt(hidden))
        case[f"{layer}_bias"] = dyadic(rng, hidden, bound=1)
    return case


def reference(case: Arrays) -> Arrays:
    """Return the heads' attention to the real tokens of each sequence, after the output projection."""

    def layer(x: NDArray[np.float64]) -> NDArray[np.float64]:
        queries, keys, values = (
            np.stack(np.split(x @ case[f"{name}_weight"].T + case[f"{name}_bias"], int(case["num_heads"]), axis=-1))
            for name in "qkv"
        )  # (h, n, dh) each
        weights = softmax(queries @ keys.swapaxes(1, 2) / math.sqrt(keys.shape[-1]))
        return np.concatenate(weights @ values, axis=-1) @ case["mix_weight"].T + case["mix_bias"]

    return attended(case, layer)


# --- answers ------------------------------------------------------------------------------------

INIT = """\
class FullSelfAttention(nn.Module):
    def __init__(self, hidden, num_heads):
        super().__init__()
        self.q = nn.Linear(hidden, hidden)
        self.k = nn.Linear(hidden, hidden)
        self.v = nn.Linear(hidden, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.num_heads = num_heads
        self.head_size = hidden // num_heads

"""

# Heads and batch are one axis here, so that a mistake in their order can be made.
FORWARD = """\
    def split(self, x):
        b, n, _ = x.shape
        return x.view(b, n, self.num_heads, self.head_size).transpose(1, 2).flatten(0, 1)  # (b * h, n, dh)

    def forward(self, x, visible):
        b, n, hidden = x.shape
        k, q, v = self.split(self.k(x)), self.split(self.q(x)), self.split(self.v(x))
        scores = q @ k.transpose(1, 2) / self.head_size**0.5  # (b * h, n, n)
        unreadable = ~visible.repeat_interleave(self.num_heads, dim=0)[:, None, :]  # (b * h, 1, n)
        scores = scores.masked_fill(unreadable, -math.inf)
        weights = scores.softmax(dim=-1)
        heads = (weights @ v).view(b, self.num_heads, n, self.head_size)
        return self.mix(heads.transpose(1, 2).reshape(b, n, hidden))
"""

MODEL_ANSWER = INIT + FORWARD

SPLIT = "x.view(b, n, self.num_heads, self.head_size).transpose(1, 2)"
AVERAGE = "weights @ v"
MERGE = "heads.transpose(1, 2).reshape(b, n, hidden)"
EACH_HEAD = "visible.repeat_interleave(self.num_heads, dim=0)"


def wrong(name: str, *edits: tuple[str, str], fails: tuple[str, ...] = (WHOLE,), hint: str = "") -> WrongAnswer:
    """Return the answer with a mistake; by default, padding is still masked."""
    return edited(name, MODEL_ANSWER, *edits, fails=fails, hint=hint)


WRONG = (
    *(
        mistake
        for mistake in score_mistakes(MODEL_ANSWER, "self.head_size", fails=(WHOLE,))
        if mistake.name != "scaled-by-input-size"  # the width of all heads, below
    ),
    wrong("scaled-by-hidden", ("self.head_size**0.5", "hidden**0.5")),
    wrong("scaled-by-heads", ("self.head_size**0.5", "self.num_heads**0.5")),
    *(
        replace(mistake, fails=(WHOLE,) if mistake.name == "not-normalised" else BOTH)
        for mistake in softmax_mistakes(MODEL_ANSWER)
    ),
    wrong(
        "softmax-over-heads", (SOFTMAX, "scores.view(b, self.num_heads, n, n).softmax(dim=1).flatten(0, 1)"), fails=BOTH
    ),
    wrong("split-by-view", (SPLIT, "x.view(b, self.num_heads, n, self.head_size)"), fails=BOTH),
    wrong(
        "heads-mixed-with-batch",
        ("view(b, self.num_heads, n, self.head_size)", "view(self.num_heads, b, n, self.head_size).transpose(0, 1)"),
        fails=BOTH,
    ),
    wrong(
        "heads-before-batch", (SPLIT, "x.view(b, n, self.num_heads, self.head_size).permute(2, 0, 1, 3)"), fails=BOTH
    ),
    wrong("split-interleaved", (SPLIT, "x.view(b, n, self.head_size, self.num_heads).permute(0, 3, 1, 2)")),
    wrong("merged-without-transpose", (MERGE, "heads.reshape(b, n, hidden)"), fails=BOTH),
    wrong("merged-interleaved", (MERGE, "heads.permute(0, 2, 3, 1).reshape(b, n, hidden)")),
    wrong("no-mixing", (f"self.mix({MERGE})", MERGE)),
    wrong("no-mixing-bias", (f"self.mix({MERGE})", f"{MERGE} @ self.mix.weight.T")),
    wrong("keys-as-values", (AVERAGE, "weights @ k")),
    wrong("keys-compared-with-keys", ("q @ k.transpose", "k @ k.transpose")),
    wrong(
        "one-wide-head",
        ("self.num_heads = num_heads", "self.num_heads = 1"),
        ("self.head_size = hidden // num_heads", "self.head_size = hidden"),
    ),
    wrong("residual", (f"self.mix({MERGE})", f"self.mix({MERGE}) + x")),
    *padding_mistakes(MODEL_ANSWER, WHOLE, PADDING),
    edited("mask-in-another-order", MODEL_ANSWER, (EACH_HEAD, "visible.repeat(self.num_heads, 1)")),
    edited(
        "mask-for-the-first-head",
        MODEL_ANSWER,
        (
            EACH_HEAD,
            f"({EACH_HEAD} | (torch.arange(b * self.num_heads, device=x.device)[:, None] % self.num_heads > 0))",
        ),
    ),
)

MISBEHAVING = (
    *misbehaviours(MODEL_ANSWER, "FullSelfAttention.forward", longer=(2, 17), calls=2, parts=BOTH),
    only_in_training(MODEL_ANSWER, "FullSelfAttention.forward", BOTH),
    edited("mask-of-queries", MODEL_ANSWER, ("[:, None, :]", "[:, :, None]"), hint="no-key-left"),
    edited(
        "queries-hidden-too",
        MODEL_ANSWER,
        (EACH_HEAD, "visible"),
        ("[:, None, :]", "[:, None, None, :] | ~visible[:, None, :, None]"),
        ("scores.masked_fill(", "scores.unflatten(0, (b, -1)).masked_fill("),
        (SOFTMAX, f"{SOFTMAX}.flatten(0, 1)"),
        hint="no-key-left",
    ),
    edited(
        "fixed-number-of-heads",
        MODEL_ANSWER,
        ("self.num_heads = num_heads", "self.num_heads = 3"),
        ("hidden // num_heads", "hidden // 3"),
        fails=BOTH,
        hint="other-sizes",
    ),
    edited(
        "output-and-weights", MODEL_ANSWER, (f"self.mix({MERGE})", "heads, weights"), fails=BOTH, hint="not-a-tensor"
    ),
    edited(
        "layer-misnamed",
        MODEL_ANSWER,
        ("self.mix = nn.Linear(hidden, hidden)", "self.out = nn.Linear(hidden, hidden)"),
        ("self.mix(heads", "self.out(heads"),
        fails=BOTH,
        hint="no-such-parameter",
    ),
    edited(
        "no-module",
        MODEL_ANSWER,
        ("(nn.Module)", ""),
        ("        super().__init__()\n", ""),
        fails=BOTH,
        hint="not-a-module",
    ),
    edited(
        "ready-made",
        MODEL_ANSWER,
        (f"({AVERAGE})", "F.scaled_dot_product_attention(q, k, v, ~unreadable)"),
        fails=BOTH,
        hint="ready-made-attention",
    ),
)

FORWARDS = {
    "four-axes": """\
    def forward(self, x, visible):
        b, n, hidden = x.shape
        h, dh = self.num_heads, self.head_size
        q, k, v = (layer(x).view(b, n, h, dh).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(dh)
        weights = scores.masked_fill(~visible[:, None, None, :], float("-inf")).softmax(dim=-1)
        return self.mix((weights @ v).transpose(1, 2).contiguous().view(b, n, hidden))
""",
    "einsum": """\
    def forward(self, x, visible):
        q, k, v = (layer(x).unflatten(2, (self.num_heads, -1)) for layer in (self.q, self.k, self.v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * self.head_size**-0.5
        scores = torch.where(visible[:, None, None], scores, -torch.inf)
        return self.mix(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2))
""",
    "loop-over-heads": """\
    def forward(self, x, visible):
        bias = torch.zeros_like(visible, dtype=x.dtype).masked_fill(~visible, -1e9)[:, None]
        parts = zip(*(layer(x).split(self.head_size, dim=-1) for layer in (self.q, self.k, self.v)))
        heads = [torch.softmax(q @ k.mT / self.head_size**0.5 + bias, dim=-1) @ v for q, k, v in parts]
        return self.mix(torch.cat(heads, dim=-1))
""",
    "loop-over-sequences": """\
    def forward(self, x, visible):
        rows = []
        for sequence, real in zip(x, visible):
            n = len(sequence)
            q = self.q(sequence).view(n, self.num_heads, -1).transpose(0, 1)
            k = self.k(sequence[real]).view(-1, self.num_heads, self.head_size).transpose(0, 1)
            v = self.v(sequence[real]).view(-1, self.num_heads, self.head_size).transpose(0, 1)
            weights = F.softmax(torch.bmm(q, k.mT) / k.shape[-1] ** 0.5, dim=-1)
            rows.append(self.mix(torch.bmm(weights, v).transpose(0, 1).reshape(n, -1)))
        return torch.stack(rows)
""",
    "heads-before-batch-both-ways": """\
    def forward(self, x, visible):
        b, n, hidden = x.shape
        q, k, v = (torch.cat(layer(x).chunk(self.num_heads, dim=-1)) for layer in (self.q, self.k, self.v))
        scores = q @ k.mT / self.head_size**0.5
        scores = scores.masked_fill(~visible.repeat(self.num_heads, 1).unsqueeze(1), -math.inf)
        return self.mix(torch.cat((scores.softmax(-1) @ v).chunk(self.num_heads), dim=-1))
""",
    "shared-out-again": """\
    def forward(self, x, visible):
        b, n, hidden = x.shape
        q, k, v = [f(x).reshape(b, n, self.num_heads, -1).permute(0, 2, 1, 3) for f in (self.q, self.k, self.v)]
        weights = (q @ k.mT / self.head_size**0.5).softmax(dim=-1) * visible[:, None, None]
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return self.mix((weights @ v).permute(0, 2, 1, 3).reshape(b, n, hidden))
""",
    "own-softmax": """\
    def forward(self, x, visible):
        b, n, hidden = x.shape
        shape = (b, n, self.num_heads, self.head_size)
        q = (self.q(x) / math.sqrt(self.head_size)).view(shape).transpose(1, 2)
        k, v = self.k(x).view(shape).permute(0, 2, 3, 1), self.v(x).view(shape).transpose(1, 2)
        scores = torch.matmul(q, k)
        exponentials = (scores - scores.amax(dim=-1, keepdim=True)).exp() * visible[:, None, None].to(x.dtype)
        heads = torch.matmul(exponentials, v) / exponentials.sum(dim=-1, keepdim=True)
        return self.mix(heads.transpose(1, 2).flatten(2))
""",
    "queries-hidden-too-by-a-number": """\
    def forward(self, x, visible):
        b, n, hidden = x.shape
        q, k, v = (f(x).view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        both = (visible[:, :, None] & visible[:, None, :]).unsqueeze(1)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(both == 0, torch.finfo(x.dtype).min)
        output = self.mix((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, hidden))
        return output * visible.unsqueeze(-1)
""",
    "mixing-head-by-head": """\
    def forward(self, x, visible):
        b, n, hidden = x.shape
        q, k, v = (f(x).view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / q.shape[-1] ** 0.5 + visible.to(x.dtype).log()[:, None, None]
        mix = self.mix.weight.view(hidden, self.num_heads, -1)
        return torch.einsum("bhij,bhjd,ohd->bio", scores.softmax(-1), v, mix) + self.mix.bias
""",
    "masked-in-place": """\
    def forward(self, x, visible=None):
        b, n, hidden = x.shape
        h, dh = self.num_heads, self.head_size
        q, k, v = (f(x).view(b, n, h, dh).transpose(1, 2).reshape(b * h, n, dh) for f in (self.q, self.k, self.v))
        scores = torch.baddbmm(x.new_zeros(b * h, n, n), q, k.mT, alpha=dh**-0.5).view(b, h, n, n)
        scores[~visible[:, None, None].expand(b, h, n, n)] = -1e4
        heads = scores.softmax(dim=-1).view(b * h, n, n).bmm(v).view(b, h, n, dh)
        return self.mix(heads.swapaxes(1, 2).reshape(b, n, -1))
""",
    "float64": """\
    def forward(self, x, visible):
        b, n, hidden = x.shape
        q, k, v = (f(x).double().view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(visible.logical_not()[:, None, None], -torch.inf)
        heads = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return heads @ self.mix.weight.double().T + self.mix.bias
""",
}

FULL_ATTENTION_RECORD = ValueRecord(
    public=FULL_ATTENTION,
    title="Full self-attention: heads as one more batch dimension",
    defines="FullSelfAttention",
    parts=(Part(WHOLE, 2, part_values(is_right("whole"))), Part(PADDING, 2, padding)),
    properties=(SEQUENCES_APART, input_matters("whole", "padded"), ignores_padding("padded")),
    first_sizes={"b": 4, "n": 7, "num_heads": 3, "head_size": 5},
    other_length={"b": 2, "n": 17},
    # Small enough for answers whose softmax includes padding and is renormalised afterwards.
    other_sizes={"b": 3, "n": 11, "num_heads": 2, "head_size": 7, "magnitude": 2},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right={name: INIT + forward for name, forward in FORWARDS.items()},
)
