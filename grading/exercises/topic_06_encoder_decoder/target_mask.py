"""The exercise of topic 06 about the mask of a padded target: which positions may attend to which."""

import random

import numpy as np

from grading.exercises.topic_06_encoder_decoder.cross_attention import right_for_other_masks
from grading.judging.judge import values
from grading.judging.mistakes import misbehaviours
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.topic_06_encoder_decoder.target_mask import TARGET_MASK


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return sequences of different lengths, the last without padding; word ids are below and above the padding id.

    The token 0 is an ordinary word. With large ids, it is the padding token, and the first sequence is the longest.
    """
    b, n, words = (sizes[name] for name in ("b", "n", "words"))
    pad = 0 if "magnitude" in sizes else 1 + words // 2
    drawn = sorted(range(2, n), key=lambda length: rng.random())[: b - 1]
    lengths = [*sorted(drawn, reverse=True), n]  # of three or more, the first is neither the longest nor the shortest
    if "magnitude" in sizes:
        lengths.reverse()
    visible = np.arange(n) < np.array(lengths)[:, None]  # (b, n)
    tokens = np.array([int(rng.random() * words) for _ in range(b * n)]).reshape(b, n)
    tokens[:, :2] = 0, words - 1
    tokens[tokens >= pad] += 1
    return {"tokens": np.where(visible, tokens * sizes.get("magnitude", 1), pad), "pad": np.array(pad)}


def reference(case: Arrays) -> Arrays:
    """Return 1 where a position may attend to another, pair by pair."""
    tokens, pad = case["tokens"], int(case["pad"])
    b, n = tokens.shape
    visible = np.zeros((b, n, n))
    for mask, own in zip(visible, tokens.tolist(), strict=True):
        for i in range(n):
            for j in range(i + 1):
                mask[i, j] = own[j] != pad
    return {"visible": visible}


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def target_mask(tokens, pad):
    b, n = tokens.shape
    real = tokens != pad  # (b, n)
    past = torch.ones(n, n, dtype=torch.bool, device=tokens.device).tril()  # (i, j)
    visible = past & real[:, None, :]  # (b, i, j)
    return visible
"""

LINES = {
    "real": "tokens != pad",
    "past": "torch.ones(n, n, dtype=torch.bool, device=tokens.device).tril()",
    "visible": "past & real[:, None, :]",
    "returned": "return visible",
}
ALL = "torch.ones(n, n, dtype=torch.bool, device=tokens.device)"


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    if "returned" in lines:
        lines["returned"] = f"return {lines['returned']}"
    return edited(name, MODEL_ANSWER, *((LINES[line], theirs) for line, theirs in lines.items()), hint=hint)


# The same numbers: with a causal mask, a real token attends to real tokens only.

WRONG = (
    wrong("diagonal-hidden", past=f"{ALL}.tril(-1)"),
    wrong("wrong-triangle", past=f"{ALL}.triu()"),
    wrong("only-the-future", past=f"{ALL}.triu(1)"),
    wrong("one-step-ahead", past=f"{ALL}.tril(1)"),
    wrong("look-ahead-missing", past=ALL),
    wrong("padding-visible", real="torch.ones_like(tokens, dtype=torch.bool)"),
    wrong("everything-visible", visible="torch.ones_like(past & real[:, None, :])"),
    wrong("padding-of-queries", visible="past & real[:, :, None]"),
    wrong("rows-of-padding-blank", visible="past & real[:, None, :] & real[:, :, None]", hint="padding-of-queries"),
    wrong(
        "padding-reads-itself", visible="past & real[:, None, :] | torch.eye(n, dtype=torch.bool, device=tokens.device)"
    ),
    wrong("true-and-false-exchanged", returned="~visible"),
    wrong("padding-inverted", real="tokens == pad"),
    wrong("either", visible="past | real[:, None, :]"),
    wrong("one-of-the-two", visible="past ^ real[:, None, :]"),
    wrong("padding-of-the-first", visible="(past & real[:1, None, :]).expand(b, n, n)", hint="mask-of-the-first"),
    wrong("first-sequence-only", real="(tokens != pad) | (torch.arange(b, device=tokens.device) > 0)[:, None]"),
    wrong("padding-of-any", visible="past & (tokens != pad).all(dim=0).expand(b, 1, n)"),
    wrong("pad-taken-for-zero", real="tokens != 0"),
    wrong("pad-taken-for-the-largest", real="tokens < pad"),
    wrong("pad-taken-for-the-smallest", real="tokens > pad"),
    wrong(
        "nothing-to-find",
        real="torch.arange(n, device=tokens.device) < (tokens == pad).int().argmax(dim=1, keepdim=True)",
    ),
    wrong("pad-taken-for-the-last-id", real="tokens != tokens.max()"),
    wrong("last-word-hidden", real="(tokens != pad) & (tokens != pad).roll(-1, dims=1)"),
    wrong("first-pad-visible", real="(tokens != pad) | (tokens != pad).roll(1, dims=1)"),
    wrong("itself-only", past="torch.eye(n, dtype=torch.bool, device=tokens.device)"),
    wrong("transposed", returned="visible.mT"),
    wrong("upside-down", past=f"{ALL}.tril().flip(0)"),
    wrong("without-a-batch", returned="past"),
    wrong("padding-only", returned="real"),
    wrong("axis-for-heads", returned="visible[:, None]"),
    wrong("last-query-only", returned="visible[:, -1:]"),
    wrong("padding-cut-off", returned="visible[:, :-1, :-1]"),
)

BEHAVIOURS = misbehaviours(MODEL_ANSWER, "target_mask", longer=(4, 17))

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name not in ("changes-its-input", "cuts-the-gradient")),  # whole numbers
    wrong("tokens-changed", real="tokens.clone() != pad\n    tokens[~real] = 0", hint="input-changed"),
    wrong(
        "infinity-for-hidden",
        returned="torch.zeros(b, n, n, device=tokens.device).masked_fill(~visible, -math.inf)",
        hint="not-boolean",
    ),
    wrong("of-floats", returned="visible.float()", hint="not-boolean"),
    wrong("of-whole-numbers", returned="visible.long()", hint="not-boolean"),
    wrong("numbers-multiplied", visible="torch.ones(n, n).tril() * real[:, None, :]", hint="not-boolean"),
    wrong("rows-as-lists", returned="visible.tolist()", hint="not-a-tensor"),
    wrong("both-masks", returned="past, real", hint="not-a-tensor"),
    wrong("fixed-length", past="torch.ones(7, 7, dtype=torch.bool).tril()", hint="other-length"),
    wrong("at-most-seventeen-back", past=f"{ALL}.tril().triu(-17)", hint="other-sizes"),
    wrong("pad-of-zero-taken-for-none", real="tokens != (pad or -1)", hint="other-sizes"),
    wrong("pad-taken-from-the-first-sequence", real="tokens != tokens[0, -1]", hint="other-sizes"),
    wrong("few-bits", real="tokens.byte() != pad", hint="other-sizes"),
    edited(
        "mask-kept",
        MODEL_ANSWER.replace("def target_mask", "kept = {}\n\n\ndef target_mask"),
        (LINES["returned"], "return kept.setdefault((b, n), visible)"),
    ),
    wrong("compares-lists", real="tokens.tolist() != pad", visible="past & real[:, None, :]", hint="raises"),
    wrong("nothing-returned", returned="None", hint="not-a-tensor"),
)

RIGHT = {
    "one-line": """\
def target_mask(tokens, pad):
    return (tokens != pad)[:, None, :].expand(-1, tokens.shape[1], -1).tril()
""",
    "product-of-numbers": """\
def target_mask(tokens, pad):
    n = tokens.size(1)
    return (torch.tril(torch.ones(n, n, device=tokens.device)) * (tokens != pad).unsqueeze(1)).bool()
""",
    "positions-compared": """\
def target_mask(tokens, pad):
    position = torch.arange(tokens.shape[1], device=tokens.device)
    past = position[None, :] <= position[:, None]
    return past.unsqueeze(0) & tokens.ne(pad).unsqueeze(1)
""",
    "lengths": """\
def target_mask(tokens, pad):
    b, n = tokens.shape
    lengths = (tokens != pad).sum(dim=1)
    position = torch.arange(n, device=tokens.device)
    return torch.minimum(position[None, :, None], lengths[:, None, None] - 1) >= position
""",
    "hidden-inverted": """\
def target_mask(tokens, pad):
    n = tokens.shape[1]
    future = torch.ones(n, n, dtype=torch.bool, device=tokens.device).triu(diagonal=1)
    return ~(future | (tokens == pad)[:, None])
""",
    "filled": """\
def target_mask(tokens, pad):
    b, n = tokens.shape
    visible = torch.ones(b, n, n, dtype=torch.bool, device=tokens.device).tril()
    return visible.masked_fill(tokens.eq(pad).view(b, 1, n), False)
""",
    "pair-by-pair": """\
def target_mask(tokens, pad):
    rows = tokens.tolist()
    return torch.tensor(
        [[[j <= i and row[j] != pad for j in range(len(row))] for i in range(len(row))] for row in rows],
        device=tokens.device,
    )
""",
    "query-by-query": """\
def target_mask(tokens, pad):
    b, n = tokens.shape
    visible = torch.zeros(b, n, n, dtype=torch.bool, device=tokens.device)
    for i in range(n):
        visible[:, i, : i + 1] = tokens[:, : i + 1] != pad
    return visible
""",
    "sequence-by-sequence": """\
def target_mask(tokens, pad):
    masks = []
    for sequence in tokens:
        n, length = len(sequence), int((sequence != pad).sum())
        mask = torch.ones(n, n, device=tokens.device).tril()
        mask[:, length:] = 0
        masks.append(mask == 1)
    return torch.stack(masks)
""",
    "where": """\
def target_mask(tokens, pad):
    n = tokens.shape[1]
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    return torch.where((j <= i).to(tokens.device), (tokens != pad)[:, None, :], False)
""",
    "torch-own": """\
def target_mask(tokens, pad):
    future = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
    padding = torch.zeros(tokens.shape, device=tokens.device).masked_fill(tokens == pad, -math.inf)
    return (future + padding[:, None, :]).isfinite()
""",
    "numpy": """\
import numpy as np


def target_mask(tokens, pad):
    array = tokens.cpu().numpy()
    return torch.from_numpy(np.tri(array.shape[1], dtype=bool) & (array != pad)[:, None, :]).to(tokens.device)
""",
}

TARGET_MASK_RECORD = ValueRecord(
    public=TARGET_MASK,
    title="The mask of the target",
    defines="target_mask",
    parts=(Part("target-mask-check", 2, values),),
    properties=(SEQUENCES_APART, right_for_other_masks(reference, "tokens"), input_matters("visible")),
    first_sizes={"b": 3, "n": 7, "words": 10},
    other_length={"b": 4, "n": 17},
    other_sizes={"b": 5, "n": 11, "words": 13, "magnitude": 256},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
