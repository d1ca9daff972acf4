"""The exercise of topic 03 about an encoder block with a padding mask and dropout."""

import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from grading.exercises.topic_02_multi_head_attention import decoder_block
from grading.exercises.topic_02_multi_head_attention.decoder_block import (
    linear,
    normalised,
    thought,
    with_even_positions,
)
from grading.isolation.answers import Answer
from grading.judging.judge import Tolerances, as_given, failure_told, part_values, right, values
from grading.judging.mistakes import in_a_plain_list, misbehaviours, no_epsilon, only_in_training
from grading.judging.padded_batches import draw_batch, is_right
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.checks.engine.verdict import Mark
from transformer_lm.checks.topic_03_classification.encoder_block import (
    ENCODER_BLOCK,
    ENCODER_DROPOUT,
    HALVED,
    NORMS,
    check_halves,
)

DROPOUT, BLOCK = "encoder-block-dropout", "encoder-block-check"


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return a batch with padding, the weights of the block, and those of the stand-in for attention."""
    hidden = sizes["hidden"]
    case = draw_batch(rng, sizes, hidden, bound=2)
    case["x"] = with_even_positions(case["x"])
    for norm in NORMS:
        case[f"{norm}_weight"] = 1 + dyadic(rng, hidden, bound=0.75)
        case[f"{norm}_bias"] = dyadic(rng, hidden, bound=1)
    widths = {"attention": (hidden, hidden), "up": (hidden, 4 * hidden), "down": (4 * hidden, hidden)}
    for layer, (size_in, size_out) in widths.items():
        case[f"{layer}_weight"] = dyadic(rng, size_out, size_in, bound=0.75)
        case[f"{layer}_bias"] = dyadic(rng, size_out, bound=1)
    return case


def reference(case: Arrays) -> Arrays:
    """Return x plus the output of attention to real positions, plus the output of the MLP; 0 at padding."""
    output, dropped = np.zeros_like(case["x"]), np.zeros_like(case["x"])
    for sequence, length in enumerate(case["visible"].sum(axis=1)):
        x = case["x"][sequence, :length]
        seen = normalised(case, "attention_norm", x)
        read = x + linear(case, "attention", seen.sum(axis=0) / 4 - seen)
        output[sequence, :length] = read + thought(case, read)
        dropped[sequence, :length] = x
    return {"output": output, "undropped": output, "dropped": dropped}


def dropout_is_right(outputs: Arrays, case: Arrays, expected: Arrays, allowed: Tolerances) -> bool:
    """Return whether dropout with p = 1 is right, whatever the rest is: it drops all in training, none in eval mode."""
    if outputs.keys() != expected.keys() or not right("dropped", outputs, expected, allowed):
        return False
    output, undropped = outputs["output"], outputs["undropped"]
    same = output.shape == undropped.shape and np.allclose(output, undropped, rtol=0, atol=allowed["output"])
    return same and not np.allclose(output, expected["dropped"], rtol=0, atol=1)  # there was something to drop


def dropout(record: ValueRecord, part: Part, answer: Answer, rng: random.Random) -> Mark:
    """Judge dropout with a rate of 1 and with a rate of one half."""

    def is_right(outputs: Arrays, case: Arrays, expected: Arrays, allowed: Tolerances) -> bool:
        if not dropout_is_right(outputs, case, expected, allowed):
            return False
        try:
            _check_parts(record, answer, rng)
        except CheckFailed:
            return False
        _asked(record, answer, case, "call", "output", build=True)  # unchanged
        return True

    mark = values(record, part, answer, rng, rule=is_right)
    if mark.is_right:
        _check_parts(record, answer, rng)
    return mark


def _check_parts(record: ValueRecord, answer: Answer, rng: random.Random) -> None:
    """Raise CheckFailed unless half of what each part adds is dropped, as the student's check says."""

    def ask(inputs: dict[str, torch.Tensor], output: str) -> torch.Tensor:
        case = {name: tensor.numpy() for name, tensor in inputs.items()}
        how: dict[str, dict[str, Any]] = {
            "half": {"do": "call_as", "exercise": ENCODER_DROPOUT.id},
            "output": {"do": "call", "build": True},
        }
        return torch.from_numpy(_asked(record, answer, case, name=output, **how[output]))

    check_halves(ask, torch.Generator().manual_seed(rng.getrandbits(63)))


def _asked(record: ValueRecord, answer: Answer, case: Arrays, do: str, name: str, **how: object) -> NDArray[np.float64]:
    """Return the answer's output for a case, or raise CheckFailed if there is none of the right shape."""
    inputs = {key: as_given(array) for key, array in case.items()}
    reply, found = answer.ask(do, inputs, name=record.defines, **how)
    output = found.get(f"outputs/{name}")
    if failure_told(reply) or output is None or output.shape != case["x"].shape:
        tried = record.public.tried({key: torch.from_numpy(array) for key, array in inputs.items()}, name)
        raise failure_told(reply) or CheckFailed(tried, "no output", "output (b, n, hidden)", HALVED)
    return output


# --- answers ------------------------------------------------------------------------------------

INIT = """\
class TransformerEncoderBlock(nn.Module):
    def __init__(self, hidden, attention, dropout=0.0):
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

"""

PARTS = """\
    def read(self, x, visible):
        return self.dropout(self.attention(x, visible=visible))

    def think(self, x):
        return self.dropout(self.down(self.up(x).relu()))

"""


def of_the_encoder(source: str) -> str:
    """Turn an answer to the decoder block's exercise into one to this exercise, with mask and dropout."""
    forward = source.removeprefix(decoder_block.INIT).replace("(self, x)", "(self, x, visible)")
    forward = re.sub(r"self\.attention\((x|self\.\w+\(\w+\))\)", r"self.read(\1, visible)", forward)
    return INIT + PARTS + forward.replace("self.mlp(", "self.think(")


MODEL_ANSWER = of_the_encoder(decoder_block.MODEL_ANSWER)

READ, THINK = "self.read(self.attention_norm(x), visible)", "self.think(self.mlp_norm(attended))"
READ_PART, THINK_PART = "self.dropout(self.attention(x, visible=visible))", "self.dropout(self.down(self.up(x).relu()))"


def wrong(name: str, *edits: tuple[str, str], fails: tuple[str, ...] = (BLOCK,), hint: str = "") -> WrongAnswer:
    """Return the model answer with a mistake in the block."""
    return edited(name, MODEL_ANSWER, *edits, fails=fails, hint=hint)


def other_norm(name: str, axes: str, hint: str = "") -> WrongAnswer:
    """Return the answer whose norms are over other axes of (b, n, hidden)."""
    source = (
        MODEL_ANSWER
        + f"""
    def normalised(self, x, norm):
        variance, mean = torch.var_mean(x, dim={axes}, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias
"""
    )
    edits = (
        ("self.attention_norm(x)", "self.normalised(x, self.attention_norm)"),
        ("self.mlp_norm(attended)", "self.normalised(attended, self.mlp_norm)"),
    )
    return edited(name, source, *edits, fails=(BLOCK,), hint=hint)


DROPOUT_WRONG = (
    wrong(
        "no-dropout",
        (READ_PART, "self.attention(x, visible=visible)"),
        (THINK_PART, "self.down(self.up(x).relu())"),
        fails=(DROPOUT,),
    ),
    wrong("dropout-of-attention-only", (THINK_PART, "self.down(self.up(x).relu())"), fails=(DROPOUT,)),
    wrong("dropout-of-mlp-only", (READ_PART, "self.attention(x, visible=visible)"), fails=(DROPOUT,)),
    wrong(
        "dropout-in-eval-mode",
        (READ_PART, "F.dropout(self.attention(x, visible=visible), self.dropout.p)"),
        (THINK_PART, "F.dropout(self.down(self.up(x).relu()), self.dropout.p)"),
        fails=(DROPOUT,),
    ),
    wrong(
        "dropout-in-eval-mode-only",
        (READ_PART, "F.dropout(self.attention(x, visible=visible), self.dropout.p, not self.training)"),
        (THINK_PART, "F.dropout(self.down(self.up(x).relu()), self.dropout.p, not self.training)"),
        fails=(DROPOUT,),
    ),
    wrong(
        "dropout-of-the-sum",
        (f"x + {READ}", f"self.dropout(x + {READ})"),
        (f"attended + {THINK}", f"self.dropout(attended + {THINK})"),
        fails=(DROPOUT,),
    ),
    wrong(
        "dropout-of-the-input",
        (READ_PART, "self.attention(self.dropout(x), visible=visible)"),
        (THINK_PART, "self.down(self.up(self.dropout(x)).relu())"),
        fails=(DROPOUT,),
    ),
    wrong("dropout-between-up-and-down", (THINK_PART, "self.down(self.dropout(self.up(x).relu()))"), fails=(DROPOUT,)),
)

# Students who have written the decoder block no longer make these mistakes.
RARE = {
    "subtracted",
    "averaged",
    "multiplied",
    "attention-twice",
    "residual-added-twice",
    "mlp-reads-attention-alone",
    "no-epsilon",
}

POST_NORM = next(each for each in decoder_block.WRONG if each.name == "post-norm")
POST_NORM_TOO = tuple(
    edited(f"post-norm-{name}", of_the_encoder(POST_NORM.source), edit, fails=(BLOCK,))
    for name, edit in (
        ("gelu", ("self.up(x).relu()", "F.gelu(self.up(x))")),
        ("without-relu", (".relu()", "")),
        ("without-mask", ("(x, visible=visible)", "(x)")),
    )
)

WRONG = (
    *(
        replace(each, source=of_the_encoder(each.source), fails=(BLOCK,))
        for each in decoder_block.WRONG
        if each.name not in RARE
    ),
    no_epsilon(MODEL_ANSWER, "self.attention_norm(x)", "self.mlp_norm(attended)", fails=(BLOCK,)),
    *POST_NORM_TOO,
    other_norm("norm-over-positions", "1"),
    other_norm("norm-over-batch", "0"),
    other_norm("norm-over-sequences", "(1, 2)"),
    wrong(
        "norm-without-weights",
        ("self.attention_norm(x)", "F.layer_norm(x, x.shape[-1:])"),
        ("self.mlp_norm(attended)", "F.layer_norm(attended, x.shape[-1:])"),
    ),
    wrong("mask-not-passed-on", ("(x, visible=visible)", "(x)")),
    wrong("mask-inverted", ("visible=visible", "visible=~visible")),
    wrong("no-relu", (".relu()", "")),
    wrong("gelu", ("self.up(x).relu()", "F.gelu(self.up(x))")),
    wrong("relu-at-the-end", ("self.up(x).relu())", "self.up(x)).relu()")),
    wrong("relu-at-the-start", ("self.up(x).relu()", "self.up(x.relu())")),
    *DROPOUT_WRONG,
)

BOTH = (DROPOUT, BLOCK)


def other_dropout(name: str, dropped: str, hint: str = "") -> WrongAnswer:
    """Return the answer with its own dropout, `dropped(x)` at a rate `p`; it is right for p = 1."""
    method = f"""\
    def dropped(self, x):
        p = self.dropout.p if self.training else 0
        return {dropped}

"""
    source = INIT + method + MODEL_ANSWER.removeprefix(INIT).replace("self.dropout(", "self.dropped(")
    return WrongAnswer(name, source, (DROPOUT,), hint=hint)


HALF_WRONG = (
    *(
        edited(name, MODEL_ANSWER, *edits, fails=(DROPOUT,), hint="not-halved")
        for name, edits in {
            "dropout-of-the-wide-too": [(THINK_PART, "self.dropout(self.down(self.dropout(self.up(x).relu())))")],
            "dropout-of-the-norm-too": [(READ_PART, "self.dropout(self.attention(self.dropout(x), visible=visible))")],
            "dropout-twice": [(THINK_PART, f"self.dropout({THINK_PART})")],
            "alpha-dropout": [("nn.Dropout(dropout)", "nn.AlphaDropout(dropout)")],
        }.items()
    ),
    other_dropout("dropout-of-the-squared-share", "F.dropout(x, p**2)", hint="not-halved"),
    other_dropout("dropout-not-rescaled", "F.dropout(x, p) * (1 - p)", hint="not-halved"),
    other_dropout("dropout-only-if-strong", "F.dropout(x, p) if p > 0.9 else x", hint="not-halved"),
    other_dropout("dropout-of-whole-tokens", "F.dropout1d(x, p)", hint="dropped-together"),
    other_dropout("dropout-of-whole-features", "F.dropout1d(x.mT, p).mT", hint="dropped-together"),
    other_dropout("dropout-alike-in-all-sequences", "x * F.dropout(torch.ones_like(x[0]), p)", hint="dropped-together"),
    other_dropout("dropout-of-everything-or-nothing", "x * F.dropout(torch.ones(()), p)", hint="dropped-together"),
)

# The last call gets a copy of its input. So instead of one answer that changes that input, two change theirs in every
# call.
MISBEHAVING = (
    *(
        each
        for each in misbehaviours(MODEL_ANSWER, "TransformerEncoderBlock.forward", longer=(2, 13), calls=3, parts=BOTH)
        if each.name != "changes-its-input"
    ),
    *HALF_WRONG,
    in_a_plain_list(MODEL_ANSWER, "attention", fails=(BLOCK,)),
    edited(
        "added-in-place",
        MODEL_ANSWER,
        (f"attended = x + {READ}", f"x += {READ}\n        attended = x"),
        fails=(BLOCK,),
        hint="changed-in-place",
    ),
    edited(
        "mask-inverted-in-place",
        MODEL_ANSWER,
        (f"attended = x + {READ}", f"attended = x + {READ}\n        visible.logical_not_()"),
        fails=(BLOCK,),
        hint="changed-in-place",
    ),
    only_in_training(MODEL_ANSWER, "TransformerEncoderBlock.forward", BOTH),
    edited("fixed-dropout", MODEL_ANSWER, ("nn.Dropout(dropout)", "nn.Dropout(0.5)"), fails=BOTH),
    edited(
        "one-norm", MODEL_ANSWER, ("self.mlp_norm = nn.LayerNorm(hidden)", "pass"), fails=BOTH, hint="not-a-layer-norm"
    ),
    edited(
        "batch-norm",
        MODEL_ANSWER,
        ("self.attention_norm = nn.LayerNorm(hidden)", "self.attention_norm = nn.BatchNorm1d(hidden)"),
        fails=BOTH,
        hint="not-a-layer-norm",
    ),
    edited(
        "other-eps",
        MODEL_ANSWER,
        ("self.mlp_norm = nn.LayerNorm(hidden)", "self.mlp_norm = nn.LayerNorm(hidden, eps=1e-6)"),
        fails=BOTH,
    ),
    edited(
        "twice-as-wide",
        MODEL_ANSWER,
        ("self.up = nn.Linear(hidden, 4 * hidden)", "self.up = nn.Linear(hidden, 2 * hidden)"),
        ("self.down = nn.Linear(4 * hidden, hidden)", "self.down = nn.Linear(2 * hidden, hidden)"),
        fails=BOTH,
        hint="layer-of-other-sizes",
    ),
    edited("nothing-returned", MODEL_ANSWER, ("return attended", "attended"), fails=BOTH, hint="not-a-tensor"),
    edited(
        "no-module",
        MODEL_ANSWER,
        ("(nn.Module)", ""),
        ("        super().__init__()\n", ""),
        fails=BOTH,
        hint="not-a-module",
    ),
)

FORWARDS = {
    "x-again-and-again": """\
    def forward(self, x, visible):
        x = x + self.dropout(self.attention(self.attention_norm(x), visible=visible))
        return x + self.dropout(self.down(F.relu(self.up(self.mlp_norm(x)))))
""",
    "step-by-step": """\
    def forward(self, x, visible=None):
        residual = x
        x = self.attention_norm(x)
        x = self.attention(x, visible)
        x = self.dropout(x)
        x = residual + x
        residual = x
        x = self.mlp_norm(x)
        x = self.up(x)
        x = torch.relu(x)
        x = self.down(x)
        x = self.dropout(x)
        return x + residual
""",
    "one-sum": """\
    def forward(self, x, visible):
        read = self.dropout(self.attention(self.attention_norm(x), visible))
        thought = self.down(self.up(self.mlp_norm(x + read)).clamp(min=0))
        return x + read + self.dropout(thought)
""",
    "sequential": """\
    def forward(self, x, visible):
        think = nn.Sequential(self.mlp_norm, self.up, nn.ReLU(), self.down, self.dropout)
        x = torch.add(x, self.dropout(self.attention(self.attention_norm(x), visible=visible)))
        return torch.add(x, think(x))
""",
    "dropout-told-the-mode": """\
    def forward(self, x, visible):
        found = self.attention(self.attention_norm(x), visible=visible)
        x = x + F.dropout(found, self.dropout.p, training=self.training)
        found = self.down(torch.maximum(self.up(self.mlp_norm(x)), torch.zeros(())))
        return x + F.dropout(found, self.dropout.p, training=self.training)
""",
    "dropout-by-hand": """\
    def dropped(self, x):
        if not self.training or self.dropout.p == 0:
            return x
        kept = torch.rand_like(x) >= self.dropout.p
        return x * kept / (1 - self.dropout.p)

    def forward(self, x, visible):
        x = x + self.dropped(self.attention(self.attention_norm(x), visible=visible))
        return x + self.dropped(self.down(self.up(self.mlp_norm(x)).relu()))
""",
    "norm-by-hand": """\
    def normalised(self, x, norm):
        centred = x - x.mean(dim=-1, keepdim=True)
        return norm.weight * centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() + norm.bias

    def forward(self, x, visible):
        x = x + self.dropout(self.attention(self.normalised(x, self.attention_norm), visible=visible))
        return x + self.dropout(self.down(self.up(self.normalised(x, self.mlp_norm)).relu()))
""",
    "functional": """\
    def forward(self, x, visible):
        shape = x.shape[-1:]
        seen = F.layer_norm(x, shape, self.attention_norm.weight, self.attention_norm.bias)
        x = x + self.dropout(self.attention(seen, visible=visible))
        seen = F.layer_norm(x, shape, self.mlp_norm.weight, self.mlp_norm.bias)
        wide = F.linear(seen, self.up.weight, self.up.bias)
        return x + self.dropout(F.linear(wide * (wide > 0), self.down.weight, self.down.bias))
""",
    "one-sequence-at-a-time": """\
    def forward(self, x, visible):
        rows = []
        for sequence, seen in zip(x.split(1), visible.split(1)):
            sequence = sequence + self.dropout(self.attention(self.attention_norm(sequence), visible=seen))
            rows.append(sequence + self.dropout(self.down(F.relu(self.up(self.mlp_norm(sequence))))))
        return torch.cat(rows)
""",
    "zero-at-padding": """\
    def forward(self, x, visible):
        x = x + self.dropout(self.attention(self.attention_norm(x), visible=visible))
        x = x + self.dropout(self.down(self.up(self.mlp_norm(x)).relu()))
        return x * visible.unsqueeze(-1)
""",
}

TWO_DROPOUTS = """\
class TransformerEncoderBlock(nn.Module):
    def __init__(self, hidden, attention, dropout=0.0):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, hidden * 4), nn.Linear(hidden * 4, hidden)
        self.mlp = nn.Sequential(self.mlp_norm, self.up, nn.ReLU(), self.down, nn.Dropout(dropout))
        self.attention, self.dropout = attention, nn.Dropout(dropout)

    def forward(self, x, visible):
        attended = x + self.dropout(self.attention(self.attention_norm(x), visible))
        return attended + self.mlp(attended)
"""

ENCODER_BLOCK_RECORD = ValueRecord(
    public=ENCODER_BLOCK,
    title="A block of the encoder",
    defines="TransformerEncoderBlock",
    parts=(Part(DROPOUT, 1, dropout), Part(BLOCK, 3, part_values(is_right("output")))),
    properties=(SEQUENCES_APART, input_matters("output")),
    first_sizes={"b": 3, "n": 7, "hidden": 5},
    other_length={"b": 2, "n": 13},
    other_sizes={"b": 4, "n": 11, "hidden": 6, "magnitude": 4},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right={name: INIT + forward for name, forward in FORWARDS.items()} | {"two-dropouts": TWO_DROPOUTS},
)
