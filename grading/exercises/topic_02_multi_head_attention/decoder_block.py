"""The exercise of topic 02 about a decoder block: two parts, each with a norm before it and a residual around it."""

import random

import numpy as np
from numpy.typing import NDArray

from grading.judging.judge import values
from grading.judging.mistakes import (
    in_a_plain_list,
    loses_a_length_of_one,
    misbehaviours,
    no_epsilon,
    only_in_training,
)
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.topic_02_multi_head_attention.decoder_block import DECODER_BLOCK

NORMS = ("attention_norm", "mlp_norm")


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return an input, the weights of the two norms, and the weights of the stand-ins for attention and MLP."""
    hidden, width = sizes["hidden"], sizes["width"]
    x = dyadic(rng, sizes["b"], sizes["n"], hidden, bound=2 * sizes.get("magnitude", 1))
    case = {"x": with_even_positions(x)}
    for norm in NORMS:
        case[f"{norm}_weight"] = 1 + dyadic(rng, hidden, bound=0.75)
        case[f"{norm}_bias"] = dyadic(rng, hidden, bound=1)
    for layer, size_in, size_out in (("attention", hidden, hidden), ("up", hidden, width), ("down", width, hidden)):
        case[f"{layer}_weight"] = dyadic(rng, size_out, size_in, bound=0.75)
        case[f"{layer}_bias"] = dyadic(rng, size_out, bound=1)
    return case


def with_even_positions(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sequences in which two positions need a norm's epsilon, because their features are equal or nearly so."""
    x[0, 0], x[-1, 0] = 0, np.arange(x.shape[-1]) % 2 / 64
    return x


def reference(case: Arrays) -> Arrays:
    """Return x plus the output of attention, plus the output of the MLP."""
    x = case["x"]
    counts = np.arange(1, x.shape[1] + 1)[:, None]
    attended = x + linear(case, "attention", np.cumsum(normalised(case, "attention_norm", x), axis=1) / counts)
    return {"output": attended + thought(case, attended)}


def normalised(case: Arrays, norm: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the output of a layer norm of the case, position by position."""
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5)
    return centred / deviation * case[f"{norm}_weight"] + case[f"{norm}_bias"]


def linear(case: Arrays, layer: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the output of a linear layer of the case, position by position."""
    return x @ case[f"{layer}_weight"].T + case[f"{layer}_bias"]


def thought(case: Arrays, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the output of a block's second part, a norm and two layers with a ReLU, position by position."""
    return linear(case, "down", np.maximum(linear(case, "up", normalised(case, "mlp_norm", x)), 0))


# --- answers ------------------------------------------------------------------------------------

INIT = """\
class TransformerDecoderBlock(nn.Module):
    def __init__(self, hidden, attention, mlp):
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp = mlp

"""

FORWARD = """\
    def forward(self, x):
        attended = x + self.attention(self.attention_norm(x))
        return attended + self.mlp(self.mlp_norm(attended))
"""

MODEL_ANSWER = INIT + FORWARD

READ = "x + self.attention(self.attention_norm(x))"
THINK = "attended + self.mlp(self.mlp_norm(attended))"


def wrong(name: str, read: str = READ, think: str = THINK, hint: str = "") -> WrongAnswer:
    """Return the model answer with a mistake in one of its two lines."""
    return edited(name, MODEL_ANSWER, (READ, read), (THINK, think), hint=hint)


WRONG = (
    wrong("no-residual", read="self.attention(self.attention_norm(x))", think="self.mlp(self.mlp_norm(attended))"),
    wrong("no-residual-around-attention", read="self.attention(self.attention_norm(x))"),
    wrong("no-residual-around-mlp", think="self.mlp(self.mlp_norm(attended))"),
    wrong(
        "residual-of-the-normalised",
        read="self.attention_norm(x) + self.attention(self.attention_norm(x))",
        think="self.mlp_norm(attended) + self.mlp(self.mlp_norm(attended))",
    ),
    wrong(
        "residual-of-the-normalised-before-attention",
        read="self.attention_norm(x) + self.attention(self.attention_norm(x))",
    ),
    wrong("residual-of-the-normalised-before-mlp", think="self.mlp_norm(attended) + self.mlp(self.mlp_norm(attended))"),
    wrong("input-added-again", think="x + self.mlp(self.mlp_norm(attended))"),
    wrong("residual-added-twice", think="x + attended + self.mlp(self.mlp_norm(attended))"),
    wrong(
        "subtracted",
        read="x - self.attention(self.attention_norm(x))",
        think="attended - self.mlp(self.mlp_norm(attended))",
    ),
    wrong(
        "averaged",
        read="(x + self.attention(self.attention_norm(x))) / 2",
        think="(attended + self.mlp(self.mlp_norm(attended))) / 2",
    ),
    wrong(
        "multiplied",
        read="x * self.attention(self.attention_norm(x))",
        think="attended * self.mlp(self.mlp_norm(attended))",
    ),
    wrong(
        "post-norm",
        read="self.attention_norm(x + self.attention(x))",
        think="self.mlp_norm(attended + self.mlp(attended))",
    ),
    wrong(
        "norm-of-outputs",
        read="x + self.attention_norm(self.attention(x))",
        think="attended + self.mlp_norm(self.mlp(attended))",
    ),
    wrong("no-norm", read="x + self.attention(x)", think="attended + self.mlp(attended)"),
    wrong("no-norm-before-attention", read="x + self.attention(x)"),
    wrong("no-norm-before-mlp", think="attended + self.mlp(attended)"),
    wrong(
        "norms-swapped",
        read="x + self.attention(self.mlp_norm(x))",
        think="attended + self.mlp(self.attention_norm(attended))",
    ),
    wrong("attention-norm-twice", think="attended + self.mlp(self.attention_norm(attended))"),
    wrong("mlp-norm-twice", read="x + self.attention(self.mlp_norm(x))"),
    wrong("norm-at-the-end", think="self.mlp_norm(attended + self.mlp(self.mlp_norm(attended)))"),
    wrong(
        "mlp-first",
        read="x + self.mlp(self.mlp_norm(x))",
        think="attended + self.attention(self.attention_norm(attended))",
    ),
    wrong("in-parallel", think="attended + self.mlp(self.mlp_norm(x))"),
    wrong("mlp-reads-attention-alone", think="attended + self.mlp(self.mlp_norm(attended - x))"),
    wrong("no-attention", read="x"),
    wrong("no-mlp", think="attended"),
    wrong("attention-twice", think="attended + self.attention(self.mlp_norm(attended))"),
    no_epsilon(MODEL_ANSWER, "self.attention_norm(x)", "self.mlp_norm(attended)"),
)

MISBEHAVING = (
    *misbehaviours(MODEL_ANSWER, "TransformerDecoderBlock.forward", longer=(3, 13)),
    loses_a_length_of_one(MODEL_ANSWER, "TransformerDecoderBlock.forward"),
    only_in_training(MODEL_ANSWER, "TransformerDecoderBlock.forward"),
    in_a_plain_list(MODEL_ANSWER, "attention"),
    in_a_plain_list(MODEL_ANSWER, "mlp"),
    edited(
        "adds-to-its-input",
        MODEL_ANSWER,
        (f"attended = {READ}", "x += self.attention(self.attention_norm(x))"),
        (THINK, "x + self.mlp(self.mlp_norm(x))"),
        hint="changed-in-place",
    ),
    edited(
        "adds-to-what-the-norm-has-read",
        MODEL_ANSWER,
        (f"return {THINK}", "attended += self.mlp(self.mlp_norm(attended))\n        return attended"),
        hint="changed-in-place",
    ),
    edited(
        "forgets-the-residual-for-large-numbers",
        MODEL_ANSWER,
        (READ, "x.clamp(-3, 3) + self.attention(self.attention_norm(x))"),
        hint="other-sizes",
    ),
    edited(
        "a-norm-missing",
        MODEL_ANSWER,
        ("self.mlp_norm = nn.LayerNorm(hidden)", "self.mlp_norm = nn.Identity()"),
        hint="not-the-given-norm",
    ),
    edited("no-module", MODEL_ANSWER, ("(nn.Module)", ""), hint="not-a-module"),
    edited("nothing-returned", MODEL_ANSWER, (f"return {THINK}", THINK), hint="not-a-tensor"),
)

FORWARDS = {
    "x-again-and-again": """\
    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        x = x + self.mlp(self.mlp_norm(x))
        return x
""",
    "step-by-step": """\
    def forward(self, x):
        residual = x
        x = self.attention_norm(x)
        x = self.attention(x)
        x = residual + x
        residual = x
        x = self.mlp_norm(x)
        x = self.mlp(x)
        return residual + x
""",
    "loop-over-parts": """\
    def forward(self, x):
        for norm, part in ((self.attention_norm, self.attention), (self.mlp_norm, self.mlp)):
            x = part(norm(x)) + x
        return x
""",
    "one-sum": """\
    def forward(self, x):
        read = self.attention(self.attention_norm(x))
        thought = self.mlp(self.mlp_norm(x + read))
        return x + read + thought
""",
    "torch-add": """\
    def forward(self, x):
        x = torch.add(x, self.attention(self.attention_norm(x)))
        return torch.add(x, self.mlp(self.mlp_norm(x)))
""",
    "in-place-on-a-copy": """\
    def forward(self, x):
        output = x.clone()
        output += self.attention(self.attention_norm(x))
        return output.clone().add_(self.mlp(self.mlp_norm(output)))
""",
    "functional-norm": """\
    def normalised(self, x, norm):
        return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    def forward(self, x):
        x = x + self.attention(self.normalised(x, self.attention_norm))
        return x + self.mlp(self.normalised(x, self.mlp_norm))
""",
    "norm-by-hand": """\
    def normalised(self, x, norm):
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias

    def forward(self, x):
        x = x + self.attention(self.normalised(x, self.attention_norm))
        return x + self.mlp(self.normalised(x, self.mlp_norm))
""",
    "residual-function": """\
    def forward(self, x):
        def with_residual(part, norm, x):
            return x + part(norm(x))

        return with_residual(self.mlp, self.mlp_norm, with_residual(self.attention, self.attention_norm, x))
""",
    "one-sequence-at-a-time": """\
    def forward(self, x):
        rows = []
        for sequence in x.split(1):
            sequence = sequence + self.attention(self.attention_norm(sequence))
            rows.append(sequence + self.mlp(self.mlp_norm(sequence)))
        return torch.cat(rows)
""",
    "mlp-position-by-position": """\
    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        thoughts = [self.mlp(self.mlp_norm(position)) for position in x.unbind(dim=1)]
        return x + torch.stack(thoughts, dim=1)
""",
    "sequential": """\
    def forward(self, x):
        x = x + nn.Sequential(self.attention_norm, self.attention)(x)
        return x + nn.Sequential(self.mlp_norm, self.mlp)(x)
""",
}

DECODER_BLOCK_RECORD = ValueRecord(
    public=DECODER_BLOCK,
    title="A block of the decoder",
    defines="TransformerDecoderBlock",
    parts=(Part("decoder-block-check", 2, values),),
    properties=(SEQUENCES_APART, input_matters("output")),
    first_sizes={"b": 2, "n": 5, "hidden": 7, "width": 11},
    other_length={"b": 3, "n": 13},
    other_sizes={"b": 4, "n": 6, "hidden": 10, "width": 13, "magnitude": 4},
    ones=("n",),
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right={name: INIT + forward for name, forward in FORWARDS.items()},
)
