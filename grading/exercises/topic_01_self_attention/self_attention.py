"""The exercise of topic 01 about one attention head."""

import math
import random

import numpy as np

from grading.judging.form import shape_comments, short_forward, style
from grading.judging.judge import layers, values
from grading.judging.mistakes import (
    SOFTMAX,
    comment_mistakes,
    loses_a_length_of_one,
    misbehaviours,
    one_layer_for_all,
    only_in_training,
    overflowing_softmax,
    score_mistakes,
    softmax_mistakes,
    style_mistakes,
)
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, dyadic, edited, softmax
from transformer_lm.checks.topic_01_self_attention.self_attention import SELF_ATTENTION, self_attention_layers


def draw_self_attention(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return an input and the weights of the three layers."""
    bound = 2 * sizes.get("magnitude", 1)
    case = {"x": dyadic(rng, sizes["b"], sizes["n"], sizes["input_size"], bound=bound)}
    for layer in "kqv":
        case[f"{layer}_weight"] = dyadic(rng, sizes["hidden"], sizes["input_size"], bound=0.75)
        case[f"{layer}_bias"] = dyadic(rng, sizes["hidden"], bound=1)
    return case


def reference_self_attention(case: Arrays) -> Arrays:
    """Return softmax(Q K^T / sqrt(dh)) V."""
    keys, queries, values = (case["x"] @ case[f"{layer}_weight"].T + case[f"{layer}_bias"] for layer in "kqv")
    scores = np.einsum("bik,bjk->bij", queries, keys) / math.sqrt(keys.shape[-1])
    return {"output": softmax(scores) @ values}


HEAD_ANSWER = """\
class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.k = nn.Linear(input_size, hidden)
        self.q = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)

    def forward(self, x):
        k, q, v = self.k(x), self.q(x), self.v(x)  # (b, n, hidden) each
        scores = q @ k.transpose(1, 2) / self.q.out_features**0.5  # (b, n, n)
        weights = scores.softmax(dim=-1)  # (b, n, n)
        return weights @ v  # (b, n, hidden)
"""

WIDTH = "self.q.out_features"

HEAD_WRONG = (
    *score_mistakes(HEAD_ANSWER, WIDTH),
    *softmax_mistakes(HEAD_ANSWER),
    *one_layer_for_all(HEAD_ANSWER, "self.k(x), self.q(x), self.v(x)"),
    *(
        edited(
            name,
            HEAD_ANSWER,
            ("q @ k.transpose(1, 2)", "q.transpose(1, 2) @ k"),
            ("weights @ v", averaged),
            hint="over-features",
        )
        for name, averaged in (
            ("over-features", "v @ weights.transpose(1, 2)"),
            ("over-features-transposed", "v @ weights"),
        )
    ),
    edited("scaled-after-softmax", HEAD_ANSWER, (f" / {WIDTH}**0.5", ""), (SOFTMAX, f"{SOFTMAX} / {WIDTH}**0.5")),
    edited("softmax-over-everything", HEAD_ANSWER, (SOFTMAX, "scores.flatten(1).softmax(dim=-1).view_as(scores)")),
    edited("weights-transposed", HEAD_ANSWER, ("weights @ v", "weights.transpose(1, 2) @ v")),
    edited("keys-as-values", HEAD_ANSWER, ("weights @ v", "weights @ k")),
    edited("queries-as-values", HEAD_ANSWER, ("weights @ v", "weights @ q")),
    edited("scores-of-the-input", HEAD_ANSWER, ("q @ k.transpose(1, 2)", "x @ x.transpose(1, 2)")),
    edited("input-as-values", HEAD_ANSWER, ("weights @ v", "weights @ x")),
    edited("weights-returned", HEAD_ANSWER, (" @ v", "")),
    edited("queries-as-keys", HEAD_ANSWER, ("q @ k.transpose", "q @ q.transpose")),
    edited("keys-viewed", HEAD_ANSWER, ("k.transpose(1, 2)", "k.reshape(k.shape[0], k.shape[2], -1)")),
    edited("hardmax", HEAD_ANSWER, (SOFTMAX, "F.one_hot(scores.argmax(dim=-1), x.shape[1]).to(v.dtype)")),
    edited("causal", HEAD_ANSWER, (f"{WIDTH}**0.5", f"{WIDTH}**0.5 + torch.full_like(q @ k.mT, -math.inf).triu(1)")),
    edited("residual", HEAD_ANSWER, ("weights @ v", "weights @ v + v")),
)

HEAD_SHAPES, HEAD_STYLE = "self-attention-check-shapes", "self-attention-check-style"
BOTH = ("self-attention-check-layers", "self-attention-check")
K = "self.k = nn.Linear(input_size, hidden)"

HEAD_MISBEHAVING = (
    *misbehaviours(HEAD_ANSWER, "SelfAttention.forward", longer=(3, 13)),
    loses_a_length_of_one(HEAD_ANSWER, "SelfAttention.forward"),
    only_in_training(HEAD_ANSWER, "SelfAttention.forward"),
    overflowing_softmax(HEAD_ANSWER),
    edited(
        "ready-made-function",
        HEAD_ANSWER,
        ("return weights @ v", "return F.scaled_dot_product_attention(q, k, v)"),
        hint="ready-made-attention",
    ),
    edited(
        "ready-made-layer",
        HEAD_ANSWER,
        (
            "return weights @ v",
            "attention = nn.MultiheadAttention(v.shape[-1], 1, batch_first=True)\n        return attention(q, k, v)[0]",
        ),
        hint="ready-made-attention",
    ),
    edited("one-layer-for-two", HEAD_ANSWER, ("self.q = nn.Linear(input_size, hidden)", "self.q = self.k"), fails=BOTH),
    edited(
        "layer-sizes-swapped",
        HEAD_ANSWER,
        (K, "self.k = nn.Linear(hidden, input_size)"),
        fails=BOTH,
        hint="sizes-swapped",
    ),
    edited(
        "layer-without-bias",
        HEAD_ANSWER,
        (K, "self.k = nn.Linear(input_size, hidden, bias=False)"),
        fails=BOTH,
        hint="parameters-without-bias",
    ),
    edited(
        "layer-misnamed",
        HEAD_ANSWER,
        (K, "self.key = nn.Linear(input_size, hidden)"),
        ("self.k(x)", "self.key(x)"),
        fails=BOTH,
    ),
    edited("no-module", HEAD_ANSWER, ("SelfAttention(nn.Module)", "SelfAttention"), fails=BOTH),
    *comment_mistakes(HEAD_ANSWER, "weights = scores.softmax(dim=-1)", "(b, n, n)", "(b, n, hidden)", HEAD_SHAPES),
    *style_mistakes(HEAD_ANSWER, "weights = scores", HEAD_STYLE),
)

HEAD_INIT, _, _ = HEAD_ANSWER.partition("    def forward")

# Each writes shapes in another way.
HEAD_FORWARDS = {
    "einsum": """\
    def forward(self, x):
        scores = torch.einsum("bid,bjd->bij", self.q(x), self.k(x)) / math.sqrt(self.q.out_features)  # [b, i, j]
        return torch.einsum("bij,bjd->bid", torch.softmax(scores, -1), self.v(x))  # [b, i, d]
""",
    "bmm-in-three-lines": """\
    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)  # [batch_size, seq_len, hidden] each
        probs = F.softmax(torch.bmm(q, k.mT) / q.shape[-1] ** 0.5, dim=-1)  # [batch_size, seq_len, seq_len]
        return torch.bmm(probs, v)
        # [batch_size, seq_len, seq_len] @ [batch_size, seq_len, hidden] -> [batch_size, seq_len, hidden]
""",
    "baddbmm": """\
    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)  # (b, n, dh), (b, n, dh), (b, n, dh)
        scores = torch.baddbmm(x.new_zeros(b, n, n), q, k.mT, alpha=q.shape[-1] ** -0.5)  # (b, n, n)
        return scores.softmax(2).bmm(v)  # (b, n, n) @ (b, n, dh) -> (b, n, dh)
""",
    "own-softmax": """\
    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT / math.sqrt(self.q.out_features)  # b x n x n
        exponentials = (scores - scores.amax(dim=-1, keepdim=True)).exp()  # b x n x n
        return exponentials @ self.v(x) / exponentials.sum(dim=-1, keepdim=True)  # b x n x hidden
""",
    "scaled-queries": """\
    def forward(self, x):
        q = self.q(x) / self.q.out_features**0.5  # x [N, L, E] -> q [N, L, H]
        return torch.softmax(q @ self.k(x).permute(0, 2, 1), dim=-1) @ self.v(x)
        # q [N, L, H] @ permuted [N, H, L] -> scores [N, L, L]
        # -> [N, L, H]
""",
    "loop-over-batch": """\
    def forward(self, x):
        rows = []
        for sequence in x:
            q, k, v = self.q(sequence), self.k(sequence), self.v(sequence)  # (n, hidden) each
            rows.append(F.softmax(q @ k.T / q.shape[1] ** 0.5, dim=1) @ v)
        return torch.stack(rows)  # (b, n, hidden)
""",
    "joined-weights": """\
    def forward(self, x):
        weight = torch.cat([self.q.weight, self.k.weight, self.v.weight])  # (3 * hidden, input_size)
        bias = torch.cat([self.q.bias, self.k.bias, self.v.bias])  # (3 * hidden,)
        q, k, v = F.linear(x, weight, bias).chunk(3, dim=-1)  # (b, n, 3 * hidden) -> (b, n, hidden)
        return (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v  # (b, n, hidden)
""",
    "where-nothing-is-masked": """\
    def forward(self, x):
        # Shapes: (batch, query, key) and (batch, query, hidden).
        scores = self.q(x) @ self.k(x).mT / math.sqrt(self.q.out_features)  # [batch, query, key]
        visible = torch.ones_like(scores, dtype=torch.bool)  # [batch, query, key]
        scores = torch.where(visible, scores, torch.full_like(scores, float("-inf")))  # [batch, query, key]
        return scores.softmax(dim=-1) @ self.v(x)  # [batch, query, hidden]
""",
    "log-softmax": """\
    def forward(self, x):
        scores = self.q(x).matmul(self.k(x).transpose(-1, -2)).mul(self.q.out_features**-0.5)  # (2, 5, 5)
        return F.log_softmax(scores, dim=-1).exp().matmul(self.v(x))  # (2, 5, 5) @ (2, 5, 11) -> (2, 5, 11)
""",
    "float64": """\
    def forward(self, x):
        q, k, v = self.q(x).double(), self.k(x).double(), self.v(x).double()  # (b, n, d)
        return (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v  # (b, n, d)
""",
}

SELF_ATTENTION_RECORD = ValueRecord(
    public=SELF_ATTENTION,
    title="One attention head",
    defines="SelfAttention",
    parts=(
        Part("self-attention-check-layers", 1, layers(self_attention_layers, "SelfAttention", ("k", "q", "v"))),
        Part("self-attention-check", 3, values),
        Part(HEAD_SHAPES, 0, shape_comments),
        Part(HEAD_STYLE, 0, style, runs=False),
        Part("self-attention-check-length", 0, short_forward, runs=False),
    ),
    properties=(SEQUENCES_APART, input_matters("output")),
    first_sizes={"b": 2, "n": 5, "input_size": 7, "hidden": 11},
    other_length={"b": 3, "n": 13},
    # Some exponential of a score always overflows.
    other_sizes={"b": 4, "n": 6, "input_size": 10, "hidden": 13, "magnitude": 8},
    ones=("n",),
    draw=draw_self_attention,
    reference=reference_self_attention,
    model_answer=HEAD_ANSWER,
    wrong=HEAD_WRONG,
    misbehaving=HEAD_MISBEHAVING,
    right={name: HEAD_INIT + forward for name, forward in HEAD_FORWARDS.items()},
)
