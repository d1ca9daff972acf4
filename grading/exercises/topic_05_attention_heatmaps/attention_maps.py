"""The exercise of topic 05 about collecting the attention weights of every block in a forward pass."""

import math
import random

import numpy as np

from grading.exercises.topic_02_multi_head_attention.decoder_block import linear, normalised, thought
from grading.judging.judge import values
from grading.judging.mistakes import WRAPPER, misbehaviours
from grading.judging.properties import SEQUENCES_APART, Ask, Property, input_matters, rows_sum_to_one
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited, softmax
from transformer_lm.checks.topic_05_attention_heatmaps.attention_maps import ATTENTION_MAPS


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return the first block's input, and the weights of all blocks, whose first axis is the block."""
    blocks, h, width = (sizes[name] for name in ("blocks", "num_heads", "width"))
    hidden = h * sizes["head_size"]
    case = {"x": dyadic(rng, sizes["b"], sizes["n"], hidden, bound=2 * sizes.get("magnitude", 1))}
    case["num_heads"] = np.array(h)
    for norm in ("attention_norm", "mlp_norm"):
        case[f"{norm}_weight"] = 1 + dyadic(rng, blocks, hidden, bound=0.5)
        case[f"{norm}_bias"] = dyadic(rng, blocks, hidden, bound=0.5)
    parts = {f"attention_{layer}": (hidden, hidden) for layer in ("q", "k", "v", "mix")}
    for layer, (size_in, size_out) in (parts | {"mlp_up": (hidden, width), "mlp_down": (width, hidden)}).items():
        smaller = 2.0 ** -round(math.log2(size_in) / 2)  # so that sums are as large in layers of any width
        case[f"{layer}_weight"] = dyadic(rng, blocks, size_out, size_in, bound=2) * smaller
        case[f"{layer}_bias"] = dyadic(rng, blocks, size_out, bound=1)
    return case


def reference(case: Arrays) -> Arrays:
    """Return the maps, (b, block, h, i, j), head by head."""
    x, maps = case["x"], []
    b, n, hidden = x.shape
    h = int(case["num_heads"])
    visible = np.tri(n, dtype=bool)
    for number in range(len(case["mlp_up_weight"])):
        own = {name.removeprefix("mlp_"): array[number] for name, array in case.items() if name.startswith("mlp_")}
        own |= {name: array[number] for name, array in case.items() if "norm" in name or name.startswith("attention_")}
        read = normalised(own, "attention_norm", x)
        queries, keys, found = (linear(own, f"attention_{layer}", read).reshape(b, n, h, -1) for layer in "qkv")
        scores = np.stack([queries[:, :, head] @ keys[:, :, head].transpose(0, 2, 1) for head in range(h)], axis=1)
        weights = softmax(np.where(visible, scores / math.sqrt(hidden // h), -np.inf))  # (b, h, i, j)
        heads = [weights[:, head] @ found[:, :, head] for head in range(h)]
        x = x + linear(own, "attention_mix", np.concatenate(heads, axis=-1))
        x = x + thought(own, x)
        maps.append(weights)
    return {"maps": np.stack(maps, axis=1)}


def nothing_ahead(*outputs: str) -> Property:
    """Return the property of causal maps, (..., i, j), in which no key after the query has any weight."""

    def holds(ask: Ask, case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
        found = ask(case)
        return not any(np.triu(found[name], 1).any() for name in outputs)

    return Property("future-has-weight", holds)


NOTHING_AHEAD = nothing_ahead(*ATTENTION_MAPS.causal)

# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def attention_maps(blocks, x):
    b, n, hidden = x.shape
    maps = []
    for block in blocks:
        read = block.attention_norm(x)
        _, weights = block.attention(read, return_attention=True)  # (b * h, i, j)
        maps.append(weights.unflatten(0, (b, -1)))  # (b, h, i, j)
        x = block(x)
    return maps
"""

LINES = {
    "blocks": "for block in blocks:",
    "read": "read = block.attention_norm(x)",
    "weights": "_, weights = block.attention(read, return_attention=True)",
    "map": "weights.unflatten(0, (b, -1))",
    "next": "x = block(x)",
    "returned": "return maps",
}
ATTENDED = "attended = x + block.attention(block.attention_norm(x))"


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, MODEL_ANSWER, *((LINES[line], theirs) for line, theirs in lines.items()), hint=hint)


INPUT_MISTAKES = (
    wrong("all-from-the-first-input", next="pass"),
    wrong("norm-forgotten", read="read = x"),
    wrong("mlp-norm-in-place", read="read = block.mlp_norm(x)"),
    wrong("mlp-left-out", next="x = x + block.attention(block.attention_norm(x))"),
    wrong("attention-left-out", next="x = x + block.mlp(block.mlp_norm(x))"),
    wrong("attention-alone-passed-on", next="x = block.attention(block.attention_norm(x))"),
    wrong("residual-around-mlp-missing", next=f"{ATTENDED}\n        x = block.mlp(block.mlp_norm(attended))"),
    wrong(
        "residual-around-attention-missing",
        next="attended = block.attention(block.attention_norm(x))\n"
        "        x = attended + block.mlp(block.mlp_norm(attended))",
    ),
    wrong("mlp-without-its-norm", next=f"{ATTENDED}\n        x = attended + block.mlp(attended)"),
    wrong("normalised-passed-on", next="x = block(read)"),
    wrong("block-first", next="pass", read="x = block(x)\n        read = block.attention_norm(x)"),
    wrong("blocks-applied-twice", next="x = block(block(x))"),
    wrong(
        "first-block-for-all",
        read="read = blocks[0].attention_norm(x)",
        weights="_, weights = blocks[0].attention(read, return_attention=True)",
    ),
)

AXIS_MISTAKES = (
    wrong("heads-before-sequences", map="weights.unflatten(0, (-1, b)).transpose(0, 1)"),
    wrong("heads-first", map="weights.unflatten(0, (b, -1)).transpose(0, 1)"),
    wrong("not-split", map="weights"),
    wrong("transposed", map="weights.unflatten(0, (b, -1)).mT"),
    wrong("positions-viewed-as-heads", map="weights.reshape(b, n, n, -1).permute(0, 3, 1, 2)"),
    wrong("heads-averaged", map="weights.unflatten(0, (b, -1)).mean(dim=1)"),
    wrong("heads-averaged-and-kept", map="weights.unflatten(0, (b, -1)).mean(dim=1, keepdim=True)"),
    wrong("batch-averaged", map="weights.unflatten(0, (b, -1)).mean(dim=0, keepdim=True).expand(b, -1, n, n)"),
    wrong("first-head-only", map="weights.unflatten(0, (b, -1))[:, :1]"),
    wrong(
        "outputs-in-place-of-weights",
        weights="weights, _ = block.attention(read, return_attention=True)",
        map="weights",
    ),
)

WEIGHT_MISTAKES = (
    wrong(
        "softmax-twice",
        map="weights.softmax(dim=-1).unflatten(0, (b, -1))",
        hint="softmax-of-weights-past-the-diagonal",
    ),
    wrong(
        "masked-softmax-twice",
        map="weights.masked_fill(torch.ones(n, n, device=x.device).triu(1) == 1, -math.inf).softmax(dim=-1)"
        ".unflatten(0, (b, -1))",
    ),
    wrong("divided-by-the-largest", map="(weights / weights.amax(dim=-1, keepdim=True)).unflatten(0, (b, -1))"),
    wrong("rounded", map="(weights * 10).round().div(10).unflatten(0, (b, -1))"),
    wrong("small-weights-left-out", map="weights.where(weights > 0.05, 0).unflatten(0, (b, -1))"),
    wrong("logarithms", map="weights.clamp(min=1e-6).log().unflatten(0, (b, -1))"),
    wrong(
        "hidden-marked",
        map="weights.masked_fill(torch.ones(n, n, device=x.device).triu(1) == 1, math.nan).unflatten(0, (b, -1))",
    ),
    wrong("rollout", map="weights.unflatten(0, (b, -1)) @ maps[-1] if maps else weights.unflatten(0, (b, -1))"),
)

LIST_MISTAKES = (
    wrong("last-block-only", returned="return maps[-1:]"),
    wrong("first-block-only", returned="return maps[:1]"),
    wrong("last-block-left-out", returned="return maps[:-1]"),
    wrong("backwards", returned="return maps[::-1]"),
    wrong("blocks-backwards", blocks="for block in reversed(list(blocks)):"),
    wrong("returned-too-early", returned="return maps[:1] * len(maps)"),
    wrong("blocks-averaged", returned="return [sum(maps) / len(maps)]"),
)

BEHAVIOURS = misbehaviours(MODEL_ANSWER, "attention_maps", longer=(8, 13))
KEPT = ("differs-the-second-time", "views-its-input")
SPOILT = "result = [torch.zeros_like(part) for part in result]"


def wrapped(name: str, change: str, hint: str = "") -> WrongAnswer:
    """Return the answer that does something else after computing the maps."""
    return WrongAnswer(name, MODEL_ANSWER + WRAPPER.format(function="attention_maps", change=change), hint=hint)


MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name in KEPT),
    wrapped("changes-its-input", "x.zero_()", hint="input-changed"),
    wrapped("fits-one-length", f"if x.shape[:2] == (8, 13): {SPOILT}", hint="other-length"),
    wrapped("fits-known-sizes", f"if x.shape[1] > 17: {SPOILT}", hint="other-sizes"),
    wrong("at-most-three-blocks", returned="return maps[:3] if len(maps) > 3 else maps", hint="other-sizes"),
    wrong("two-heads", map="weights.reshape(b, 2, -1, n)[:, :, :n]", hint="other-sizes"),
    wrong("future-a-little", map="(weights + 1e-7).unflatten(0, (b, -1))", hint="future-has-weight"),
    wrong("noisy", map="(weights + torch.rand_like(weights)).unflatten(0, (b, -1))", hint="called-again"),
    wrong("sequences-centred", next="x = block(x - x.mean(dim=0))", hint="sequences-mix"),
    wrong("one-tensor", returned="return torch.stack(maps)", hint="not-a-list"),
    wrong("a-dictionary", returned="return dict(enumerate(maps))", hint="not-a-list"),
    wrong("nothing-returned", returned="maps", hint="not-a-list"),
    wrong("list-of-lists", map="weights.unflatten(0, (b, -1)).tolist()", hint="not-a-list"),
    wrong("pairs", map="(read, weights)", hint="not-a-list"),
    wrong("several-shapes", returned="return [*maps[:-1], maps[-1].mean(dim=1)]"),
    wrong("weights-not-asked-for", weights="_, weights = block.attention(read)", hint="raises"),
    wrong("block-asked", weights="_, weights = block(read, return_attention=True)", hint="raises"),
)

RIGHT = {
    "step-by-step": """\
def attention_maps(blocks, x):
    maps = []
    for block in blocks:
        found, weights = block.attention(block.attention_norm(x), return_attention=True)
        bh, n, _ = weights.shape
        maps.append(weights.view(len(x), bh // len(x), n, n))
        x = x + found
        x = x + block.mlp(block.mlp_norm(x))
    return maps
""",
    "no-gradients": """\
@torch.no_grad()
def attention_maps(blocks, x):
    weights = []
    for block in blocks:
        normalised = block.attention_norm(x)
        weights.append(block.attention(normalised, True)[1].reshape(x.shape[0], -1, x.shape[1], x.shape[1]))
        x = block(x)
    return weights
""",
    "number-of-heads-asked": """\
def attention_maps(blocks, x):
    b, n, _ = x.shape
    maps = []
    for number in range(len(blocks)):
        attention = blocks[number].attention
        _, w = attention(blocks[number].attention_norm(x), return_attention=True)
        maps.append(w.view(b, attention.num_heads, n, n).detach().clone())
        x = blocks[number].forward(x)
    return tuple(maps)
""",
    "inputs-first": """\
def attention_maps(blocks, x):
    inputs = [x]
    for block in blocks:
        inputs.append(block(inputs[-1]))
    maps = [b.attention(b.attention_norm(read), return_attention=True)[1] for b, read in zip(blocks, inputs)]
    return [weights.unflatten(0, (len(x), -1)) for weights in maps]
""",
    "hooks": """\
def attention_maps(blocks, x):
    maps, hooks = [], []

    def keep(attention, arguments, output):
        _, weights = attention.forward(arguments[0], return_attention=True)
        maps.append(weights.unflatten(0, (x.shape[0], attention.num_heads)))

    for block in blocks:
        hooks.append(block.attention.register_forward_hook(keep))
    read = x
    for block in blocks:
        read = block(read)
    for hook in hooks:
        hook.remove()
    return maps
""",
    "hook-on-the-norm": """\
def attention_maps(blocks, x):
    reads = []
    hooks = [block.attention_norm.register_forward_hook(lambda _, __, out: reads.append(out)) for block in blocks]
    nn.Sequential(*blocks)(x)
    for hook in hooks:
        hook.remove()
    return [
        block.attention(read, return_attention=True)[1].unflatten(0, (len(x), -1))
        for block, read in zip(blocks, reads)
    ]
""",
    "chunks": """\
def attention_maps(blocks, x):
    maps = []
    for block in blocks:
        _, weights = block.attention(block.attention_norm(x), return_attention=True)
        maps.append(torch.stack(weights.chunk(len(x))))
        x = block(x)
    return maps
""",
    "one-sequence-at-a-time": """\
def attention_maps(blocks, x):
    sequences = [[] for _ in blocks]
    for sequence in x.split(1):
        for own, block in zip(sequences, blocks):
            own.append(block.attention(block.attention_norm(sequence), return_attention=True)[1])
            sequence = block(sequence)
    return [torch.stack(own) for own in sequences]
""",
    "recursive": """\
def attention_maps(blocks, x):
    if not len(blocks):
        return []
    block = blocks[0]
    _, weights = block.attention(block.attention_norm(x), return_attention=True)
    return [weights.reshape(len(x), -1, *weights.shape[1:])] + attention_maps(blocks[1:], block(x))
""",
    "by-the-formula": """\
def attention_maps(blocks, x):
    b, n, hidden = x.shape
    future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
    maps = []
    for block in blocks:
        h, read = block.attention.num_heads, block.attention_norm(x)
        q, k = (layer(read).view(b, n, h, -1).transpose(1, 2) for layer in (block.attention.q, block.attention.k))
        scores = q @ k.mT / math.sqrt(hidden // h)
        maps.append(scores.masked_fill(future, -math.inf).softmax(dim=-1))
        x = block(x)
    return maps
""",
    "taken-out-of-the-list": """\
def attention_maps(blocks, x):
    maps = []
    while blocks:
        block = blocks.pop(0)
        _, weights = block.attention(block.attention_norm(x), return_attention=True)
        maps += [weights.unflatten(0, (len(x), -1))]
        x = block(x)
    return maps
""",
    "list-copied-and-turned": """\
def attention_maps(blocks, x):
    waiting, maps = blocks.copy(), []
    waiting.reverse()
    while len(waiting) > 0:
        block = waiting.pop()
        weights = block.attention(block.attention_norm(x), return_attention=True)[1]
        maps.append(weights.reshape(len(x), -1, x.shape[1], x.shape[1]))
        x = block(x)
    return maps
""",
    "generator": """\
def maps_of(blocks, x):
    for block in blocks:
        yield block.attention(block.attention_norm(x), return_attention=True)[1].unflatten(0, (len(x), -1))
        x = block(x)


def attention_maps(blocks, x):
    return list(maps_of(blocks, x))
""",
}

ATTENTION_MAPS_RECORD = ValueRecord(
    public=ATTENTION_MAPS,
    title="The attention weights of every block",
    defines="attention_maps",
    parts=(Part("attention-maps-check", 4, values),),
    properties=(rows_sum_to_one("maps"), NOTHING_AHEAD, SEQUENCES_APART, input_matters("maps")),
    first_sizes={"blocks": 3, "num_heads": 2, "b": 5, "n": 7, "head_size": 6, "width": 11},
    other_length={"b": 8, "n": 13},
    other_sizes={"blocks": 2, "num_heads": 3, "b": 7, "n": 10, "head_size": 5, "width": 11, "magnitude": 4},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=(*INPUT_MISTAKES, *AXIS_MISTAKES, *WEIGHT_MISTAKES, *LIST_MISTAKES),
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
