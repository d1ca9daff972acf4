"""The exercise of topic 06 about a decoder block: causal self-attention, cross-attention to the source, then an MLP."""

import random
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from grading.exercises.topic_02_multi_head_attention.decoder_block import (
    linear,
    normalised,
    thought,
    with_even_positions,
)
from grading.exercises.topic_06_encoder_decoder.cross_attention import right_for_other_masks
from grading.judging.judge import values
from grading.judging.mistakes import in_a_plain_list, misbehaviours, no_epsilon, only_in_training
from grading.judging.padded_batches import draw_batch
from grading.judging.properties import SEQUENCES_APART, Ask, Property, input_matters, same
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.topic_06_encoder_decoder.cross_block import (
    CROSS_BLOCK,
    NORMS,
)


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return a target and a source, both padded, the target's mask, and the weights of the norms and the parts."""
    b, n, m, hidden, width = (sizes[name] for name in ("b", "n", "m", "hidden", "width"))
    target = draw_batch(rng, {"b": b, "n": n, "magnitude": sizes.get("magnitude", 1)}, hidden, bound=2)
    source = draw_batch(rng, {"b": b, "n": m, "magnitude": sizes.get("magnitude", 1)}, hidden, bound=1)
    case = {
        "x": with_even_positions(target["x"]),
        "memory": source["x"],
        "target_visible": np.tri(n, dtype=bool) & target["visible"][:, None, :],
        "source_visible": source["visible"],
    }
    for norm in NORMS:
        case[f"{norm}_weight"] = 1 + dyadic(rng, hidden, bound=0.75)
        case[f"{norm}_bias"] = dyadic(rng, hidden, bound=1)
    layers = {"attention": (hidden, hidden), "cross": (hidden, hidden), "up": (hidden, width), "down": (width, hidden)}
    for layer, (size_in, size_out) in layers.items():
        case[f"{layer}_weight"] = dyadic(rng, size_out, size_in, bound=0.75)
        case[f"{layer}_bias"] = dyadic(rng, size_out, bound=1)
    return case


def reference(case: Arrays) -> Arrays:
    """Return x plus the outputs of self-attention, of cross-attention and of the MLP, each added to the sum so far."""
    rows = zip(case["x"], case["memory"], case["target_visible"], case["source_visible"], strict=True)
    return {"output": np.stack([_block(case, *row) for row in rows])}


def _block(
    case: Arrays,
    x: NDArray[np.float64],
    memory: NDArray[np.float64],
    target_visible: NDArray[np.bool_],
    source_visible: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return the output of the block for one target (n, hidden) and its source (m, hidden)."""
    seen = normalised(case, "attention_norm", x)
    x = x + linear(case, "attention", np.stack([seen[readable].mean(axis=0) for readable in target_visible]))
    x = x + linear(case, "cross", memory[source_visible].mean(axis=0) - normalised(case, "cross_norm", x))
    return x + thought(case, x)


def _future_unread(ask: Ask, case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
    changed = np.array(case["x"])
    changed[:, -1] = dyadic(rng, *changed[:, -1].shape, bound=2)
    return same(ask(case)["output"][:, :-1], ask(case | {"x": changed})["output"][:, :-1])


FUTURE_UNREAD = Property("last-of-the-target-read", _future_unread)

# --- answers ------------------------------------------------------------------------------------

INIT = """\
class CrossDecoderBlock(nn.Module):
    def __init__(self, hidden, attention, cross_attention, mlp):
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = attention
        self.cross_norm = nn.LayerNorm(hidden)
        self.cross_attention = cross_attention
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp = mlp

"""

FORWARD = """\
    def forward(self, x, memory, target_visible, source_visible):
        attended = x + self.attention(self.attention_norm(x), target_visible)
        informed = attended + self.cross_attention(self.cross_norm(attended), memory, source_visible)
        return informed + self.mlp(self.mlp_norm(informed))
"""

MODEL_ANSWER = INIT + FORWARD

LINES = {
    "read": "x + self.attention(self.attention_norm(x), target_visible)",
    "ask": "attended + self.cross_attention(self.cross_norm(attended), memory, source_visible)",
    "think": "informed + self.mlp(self.mlp_norm(informed))",
}
READ, ASK, THINK = (line.partition(" + ")[2] for line in LINES.values())  # outputs of the parts


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its three lines."""
    return edited(name, MODEL_ANSWER, *((LINES[line], theirs) for line, theirs in lines.items()), hint=hint)


WRONG = (
    no_epsilon(MODEL_ANSWER, "self.attention_norm(x)", "self.cross_norm(attended)", "self.mlp_norm(informed)"),
    wrong("no-residual", read=READ, ask=ASK, think=THINK),
    wrong("no-residual-around-attention", read=READ),
    wrong("no-residual-around-cross-attention", ask=ASK),
    wrong("no-residual-around-mlp", think=THINK),
    wrong(
        "residual-of-the-normalised",
        read=f"self.attention_norm(x) + {READ}",
        ask=f"self.cross_norm(attended) + {ASK}",
        think=f"self.mlp_norm(informed) + {THINK}",
    ),
    wrong("residual-of-the-normalised-around-cross-attention", ask=f"self.cross_norm(attended) + {ASK}"),
    wrong("input-added-after-cross-attention", ask=f"x + {ASK}"),
    wrong("input-added-at-the-end", think=f"x + {THINK}"),
    wrong("residual-forgets-the-source", think=f"attended + {THINK}"),
    wrong("subtracted", read=f"x - {READ}", ask=f"attended - {ASK}", think=f"informed - {THINK}"),
    wrong("averaged", read=f"(x + {READ}) / 2", ask=f"(attended + {ASK}) / 2", think=f"(informed + {THINK}) / 2"),
    wrong(
        "post-norm",
        read="self.attention_norm(x + self.attention(x, target_visible))",
        ask="self.cross_norm(attended + self.cross_attention(attended, memory, source_visible))",
        think="self.mlp_norm(informed + self.mlp(informed))",
    ),
    wrong(
        "norm-of-outputs",
        read="x + self.attention_norm(self.attention(x, target_visible))",
        ask="attended + self.cross_norm(self.cross_attention(attended, memory, source_visible))",
        think="informed + self.mlp_norm(self.mlp(informed))",
    ),
    wrong(
        "no-norm",
        read="x + self.attention(x, target_visible)",
        ask="attended + self.cross_attention(attended, memory, source_visible)",
        think="informed + self.mlp(informed)",
    ),
    wrong("no-norm-before-attention", read="x + self.attention(x, target_visible)"),
    wrong("no-norm-before-cross-attention", ask="attended + self.cross_attention(attended, memory, source_visible)"),
    wrong("no-norm-before-mlp", think="informed + self.mlp(informed)"),
    wrong(
        "norm-on-memory",
        ask="attended + self.cross_attention(self.cross_norm(attended), self.cross_norm(memory), source_visible)",
    ),
    wrong(
        "norm-of-attention-on-memory",
        ask="attended + self.cross_attention(self.cross_norm(attended), self.attention_norm(memory), source_visible)",
        hint="norm-on-memory",
    ),
    wrong(
        "norm-without-weights-on-memory",
        ask="attended + self.cross_attention(self.cross_norm(attended), "
        "F.layer_norm(memory, memory.shape[-1:]), source_visible)",
        hint="norm-on-memory",
    ),
    wrong(
        "norm-on-memory-only", ask="attended + self.cross_attention(attended, self.cross_norm(memory), source_visible)"
    ),
    wrong(
        "norms-swapped",
        read="x + self.attention(self.cross_norm(x), target_visible)",
        ask="attended + self.cross_attention(self.attention_norm(attended), memory, source_visible)",
    ),
    wrong(
        "norms-of-cross-attention-and-mlp-swapped",
        ask="attended + self.cross_attention(self.mlp_norm(attended), memory, source_visible)",
        think="informed + self.mlp(self.cross_norm(informed))",
    ),
    wrong(
        "attention-norm-twice",
        ask="attended + self.cross_attention(self.attention_norm(attended), memory, source_visible)",
    ),
    wrong("cross-norm-twice", think="informed + self.mlp(self.cross_norm(informed))"),
    wrong("norm-at-the-end", think=f"self.mlp_norm(informed + {THINK})"),
    wrong(
        "cross-attention-first",
        read="x + self.cross_attention(self.cross_norm(x), memory, source_visible)",
        ask="attended + self.attention(self.attention_norm(attended), target_visible)",
    ),
    wrong(
        "mlp-before-cross-attention",
        ask="attended + self.mlp(self.mlp_norm(attended))",
        think="informed + self.cross_attention(self.cross_norm(informed), memory, source_visible)",
    ),
    wrong(
        "mlp-first",
        read="x + self.mlp(self.mlp_norm(x))",
        ask="attended + self.attention(self.attention_norm(attended), target_visible)",
        think="informed + self.cross_attention(self.cross_norm(informed), memory, source_visible)",
    ),
    wrong(
        "in-parallel",
        ask="attended + self.cross_attention(self.cross_norm(x), memory, source_visible)",
        think="informed + self.mlp(self.mlp_norm(x))",
    ),
    wrong("attentions-in-parallel", ask="attended + self.cross_attention(self.cross_norm(x), memory, source_visible)"),
    wrong("mlp-does-not-see-the-source", think="informed + self.mlp(self.mlp_norm(attended))"),
    wrong("first-sequence-of-attention", read=f"x + {READ}[0]"),
    wrong("first-sequence-of-cross-attention", ask=f"attended + {ASK}[0]"),
    wrong("no-attention", read="x"),
    wrong("no-cross-attention", ask="attended"),
    wrong("no-mlp", think="informed"),
    wrong("cross-attention-twice", read="x + self.cross_attention(self.attention_norm(x), memory, source_visible)"),
    wrong("attention-twice", ask="attended + self.attention(self.cross_norm(attended), target_visible)"),
    wrong(
        "target-read-in-place-of-memory",
        ask="attended + self.cross_attention(self.cross_norm(attended), self.cross_norm(attended))",
    ),
    wrong("target-mask-not-passed", read="x + self.attention(self.attention_norm(x))"),
    wrong("source-mask-not-passed", ask="attended + self.cross_attention(self.cross_norm(attended), memory)"),
    wrong(
        "no-masks",
        read="x + self.attention(self.attention_norm(x))",
        ask="attended + self.cross_attention(self.cross_norm(attended), memory)",
    ),
    wrong("own-causal-mask", read="x + self.attention(self.attention_norm(x), torch.ones_like(target_visible).tril())"),
    wrong(
        "look-ahead-missing",
        read="x + self.attention(self.attention_norm(x), target_visible[:, -1:].expand_as(target_visible))",
    ),
    wrong(
        "target-mask-of-the-first",
        read="x + self.attention(self.attention_norm(x), target_visible[:1].expand_as(target_visible))",
    ),
    wrong(
        "source-mask-of-the-first",
        ask="attended + self.cross_attention(self.cross_norm(attended), memory, "
        "source_visible[:1].expand_as(source_visible))",
    ),
    wrong("target-mask-inverted", read="x + self.attention(self.attention_norm(x), ~target_visible)"),
    wrong(
        "source-mask-inverted",
        ask="attended + self.cross_attention(self.cross_norm(attended), memory, ~source_visible)",
    ),
    wrong("target-mask-transposed", read="x + self.attention(self.attention_norm(x), target_visible.mT)"),
    wrong(
        "padding-of-memory-zeroed",
        ask="attended + self.cross_attention(self.cross_norm(attended), memory * source_visible[..., None])",
    ),
)

LEFT_OUT = {  # each in training mode only, and in eval mode only
    "look-ahead-missing": {"read": "x + self.attention(self.attention_norm(x), target_visible if {mode} else None)"},
    "source-mask-missing": {
        "ask": "attended + self.cross_attention(self.cross_norm(attended), memory, source_visible if {mode} else None)"
    },
    "source-unread": {"ask": f"attended + {ASK} * {{mode}}"},
}
MODE = {"in-training": "(not self.training)", "in-eval-mode": "self.training"}

# The second call of each case, in the other mode, gets copies. Answers that change their input in every call are below.
BEHAVIOURS = misbehaviours(MODEL_ANSWER, "CrossDecoderBlock.forward", longer=(2, 17), calls=2)

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name != "changes-its-input"),
    replace(only_in_training(MODEL_ANSWER, "CrossDecoderBlock.forward"), hint="right-in-training-only"),
    in_a_plain_list(MODEL_ANSWER, "cross_attention"),
    *(
        wrong(
            f"{name}-{when}",
            **{line: theirs.format(mode=mode) for line, theirs in lines.items()},
            hint="right-in-training-only",
        )
        for name, lines in LEFT_OUT.items()
        for when, mode in MODE.items()
    ),
    edited(
        "masks-kept",
        MODEL_ANSWER,
        (
            "        attended = x",
            "        if getattr(self, 'kept', x[:0, 0]).shape != source_visible.shape:\n"
            "            self.kept = source_visible.clone()\n"
            "        source_visible = self.kept\n"
            "        attended = x",
        ),
        hint="mask-kept",
    ),
    edited(
        "two-results-expected",
        MODEL_ANSWER,
        (f"informed = {LINES['ask']}", f"found, _ = {ASK}\n        informed = attended + found"),
        hint="raises",
    ),
    wrong("dropout", think=f"informed + F.dropout({THINK}, 0.1)", hint="called-again"),
    wrong("dropout-in-training", think=f"informed + F.dropout({THINK}, 0.1, self.training)", hint="called-again"),
    wrong(
        "masks-exchanged",
        read="x + self.attention(self.attention_norm(x), source_visible)",
        ask="attended + self.cross_attention(self.cross_norm(attended), memory, target_visible)",
    ),
    wrong(
        "target-mask-twice",
        ask="attended + self.cross_attention(self.cross_norm(attended), memory, target_visible)",
        hint="masks-exchanged",
    ),
    wrong(
        "source-mask-twice", read="x + self.attention(self.attention_norm(x), source_visible)", hint="masks-exchanged"
    ),
    wrong(
        "target-mask-lost-an-axis",
        read="x + self.attention(self.attention_norm(x), target_visible[:, -1])",
        hint="masks-exchanged",
    ),
    wrong(
        "source-and-target-exchanged",
        ask="attended + self.cross_attention(memory, self.cross_norm(attended), source_visible)",
    ),
    wrong(
        "target-read-with-the-mask-of-the-source",
        ask="attended + self.cross_attention(self.cross_norm(attended), attended, source_visible)",
    ),
    edited(
        "adds-to-its-input",
        MODEL_ANSWER,
        (f"attended = {LINES['read']}", f"x += {READ}\n        attended = x"),
        hint="changed-in-place",
    ),
    edited(
        "mask-inverted-in-place",
        MODEL_ANSWER,
        (f"return {LINES['think']}", f"source_visible.logical_not_()\n        return {LINES['think']}"),
        hint="input-changed",
    ),
    wrong("forgets-the-residual-for-large-numbers", read=f"x.clamp(-7, 7) + {READ}", hint="other-sizes"),
    edited(
        "a-norm-missing",
        MODEL_ANSWER,
        ("self.cross_norm = nn.LayerNorm(hidden)", "self.cross_norm = nn.Identity()"),
        hint="not-the-given-norm",
    ),
    edited(
        "other-eps",
        MODEL_ANSWER,
        ("self.mlp_norm = nn.LayerNorm(hidden)", "self.mlp_norm = nn.LayerNorm(hidden, eps=1e-3)"),
        hint="not-the-given-norm",
    ),
    edited("no-module", MODEL_ANSWER, ("(nn.Module)", ""), ("        super().__init__()\n", ""), hint="not-a-module"),
    edited("nothing-returned", MODEL_ANSWER, (f"return {LINES['think']}", THINK), hint="not-a-tensor"),
    wrong("both-returned", think=f"informed, {THINK}", hint="not-a-tensor"),
)

FORWARDS = {
    "x-again-and-again": """\
    def forward(self, x, memory, target_visible, source_visible):
        x = x + self.attention(self.attention_norm(x), target_visible)
        x = x + self.cross_attention(self.cross_norm(x), memory, source_visible)
        x = x + self.mlp(self.mlp_norm(x))
        return x
""",
    "step-by-step": """\
    def forward(self, x, memory, target_visible, source_visible):
        residual = x
        x = self.attention_norm(x)
        x = self.attention(x, target_visible)
        x = residual + x
        residual = x
        x = self.cross_norm(x)
        x = self.cross_attention(x, memory, source_visible)
        x = residual + x
        residual = x
        x = self.mlp_norm(x)
        x = self.mlp(x)
        return residual + x
""",
    "loop-over-parts": """\
    def forward(self, x, memory, target_visible, source_visible):
        parts = (
            (self.attention_norm, self.attention, (target_visible,)),
            (self.cross_norm, self.cross_attention, (memory, source_visible)),
            (self.mlp_norm, self.mlp, ()),
        )
        for norm, part, others in parts:
            x = part(norm(x), *others) + x
        return x
""",
    "one-sum": """\
    def forward(self, x, memory, target_visible, source_visible):
        read = self.attention(self.attention_norm(x), target_visible)
        asked = self.cross_attention(self.cross_norm(x + read), memory, source_visible)
        return x + read + asked + self.mlp(self.mlp_norm(x + read + asked))
""",
    "torch-add": """\
    def forward(self, x, memory, target_visible, source_visible):
        x = torch.add(x, self.attention(self.attention_norm(x), target_visible))
        x = torch.add(x, self.cross_attention(self.cross_norm(x), memory, source_visible))
        return torch.add(x, self.mlp(self.mlp_norm(x)))
""",
    "in-place-on-a-copy": """\
    def forward(self, x, memory, target_visible, source_visible):
        output = x.clone()
        output += self.attention(self.attention_norm(x), target_visible)
        output = output.clone().add_(self.cross_attention(self.cross_norm(output), memory, source_visible))
        return output.clone().add_(self.mlp(self.mlp_norm(output)))
""",
    "functional-norm": """\
    def normalised(self, x, norm):
        return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    def forward(self, x, memory, target_visible, source_visible):
        x = x + self.attention(self.normalised(x, self.attention_norm), target_visible)
        x = x + self.cross_attention(self.normalised(x, self.cross_norm), memory, source_visible)
        return x + self.mlp(self.normalised(x, self.mlp_norm))
""",
    "norm-by-hand": """\
    def normalised(self, x, norm):
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias

    def forward(self, x, memory, target_visible, source_visible):
        x = x + self.attention(self.normalised(x, self.attention_norm), target_visible)
        x = x + self.cross_attention(self.normalised(x, self.cross_norm), memory, source_visible)
        return x + self.mlp(self.normalised(x, self.mlp_norm))
""",
    "residual-function": """\
    def forward(self, x, memory, target_visible, source_visible):
        def with_residual(x, norm, part):
            return x + part(norm(x))

        x = with_residual(x, self.attention_norm, lambda seen: self.attention(seen, target_visible))
        x = with_residual(x, self.cross_norm, lambda seen: self.cross_attention(seen, memory, source_visible))
        return with_residual(x, self.mlp_norm, self.mlp)
""",
    "one-sequence-at-a-time": """\
    def forward(self, x, memory, target_visible, source_visible):
        rows = []
        given = (tensor.split(1) for tensor in (x, memory, target_visible, source_visible))
        for target, source, past, real in zip(*given):
            target = target + self.attention(self.attention_norm(target), past)
            target = target + self.cross_attention(self.cross_norm(target), source, real)
            rows.append(target + self.mlp(self.mlp_norm(target)))
        return torch.cat(rows)
""",
    "padding-of-the-source-cut-off": """\
    def forward(self, x, memory, target_visible, source_visible):
        x = x + self.attention(self.attention_norm(x), target_visible)
        seen = self.cross_norm(x)
        asked = []
        for asking, source, real in zip(seen.split(1), memory, source_visible):
            asked.append(self.cross_attention(asking, source[real][None], real[real][None]))
        x = x + torch.cat(asked)
        return x + self.mlp(self.mlp_norm(x))
""",
    "masks-by-name": """\
    def forward(self, x, memory, target_visible, source_visible):
        x = x + self.attention(self.attention_norm(x), visible=target_visible)
        x = x + self.cross_attention(self.cross_norm(x), memory, visible=source_visible)
        return x + nn.Sequential(self.mlp_norm, self.mlp)(x)
""",
}

CROSS_BLOCK_RECORD = ValueRecord(
    public=CROSS_BLOCK,
    title="A block of the decoder with cross-attention",
    defines="CrossDecoderBlock",
    parts=(Part("cross-block-check", 3, values),),
    properties=(
        SEQUENCES_APART,
        input_matters("output"),
        FUTURE_UNREAD,
        right_for_other_masks(reference, "target_visible", "source_visible"),
    ),
    first_sizes={"b": 3, "n": 5, "m": 8, "hidden": 7, "width": 11},
    other_length={"b": 2, "n": 17, "m": 13},
    other_sizes={"b": 4, "n": 6, "m": 11, "hidden": 10, "width": 13, "magnitude": 4},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right={name: INIT + forward for name, forward in FORWARDS.items()},
)
