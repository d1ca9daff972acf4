"""The exercise of topic 06 about greedy decoding, which always takes the most likely next token."""

import random
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from grading.judging.judge import values
from grading.judging.mistakes import misbehaviours
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.topic_06_encoder_decoder.greedy_decode import GREEDY_DECODE, SURE

ROWS, PERIOD = 17, 7  # rows of the table, a prime number, and positions with different multipliers

Scores = Callable[[list[int]], NDArray[np.float64]]  # scores of the next token, given START and the tokens so far


def shuffled(rng: random.Random, items: list[int]) -> list[int]:
    """Return the items in another order."""
    return sorted(items, key=lambda each: rng.random())


def drawn_places(rng: random.Random) -> NDArray[np.int64]:
    """Return the multipliers of positions, (2, PERIOD), for the source and for the target."""
    return np.array([shuffled(rng, list(range(1, ROWS)))[:PERIOD] for _ in range(2)])


def length(words: int) -> int:
    """Return the length of a translation, END included, for a source of this many words."""
    return 2 * words - 3


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return padded sources of different lengths, and the scores of a model; 0, 1 and 2 are words.

    One source fills its row; if there are at least four, the translation of another ends at once, and the first and the
    last are neither the longest nor the shortest. The second max_len is a length in the middle, so longer translations
    are cut.
    """
    b, m, v = (sizes[name] for name in ("b", "m", "v"))
    vocabulary = v + 4
    special = shuffled(rng, list(range(3, vocabulary)))[:3]
    start, end, pad = special
    words = [token for token in range(vocabulary) if token not in special]
    read = [*sorted(shuffled(rng, list(range(3, m)))[: b - 1]), m]  # number of words in each source
    if b > 3:
        read[0] = 2
    ends = shuffled(rng, [read[1], read[-2]])
    between = shuffled(rng, [read[0], *read[2:-2], read[-1]])
    source = np.full((b, m), pad)
    for row, count in zip(source, ([ends[0], *between, ends[1]] if b > 3 else shuffled(rng, read)), strict=True):
        row[:count] = [words[int(rng.random() * len(words))] for _ in range(count)]
    table = np.zeros((ROWS, vocabulary))  # scores differ by 1, and most are negative
    for row in table:
        best, *others = shuffled(rng, words)
        row[[start, pad, *shuffled(rng, [end, *others]), best]] = np.arange(vocabulary) - vocabulary + 2
    return {
        "source": source,
        "table": table,
        "places": drawn_places(rng),
        "special": np.array(special),
        "max_lens": np.array([length(m) + 2 + int(rng.random() * 3), length(read[(b - 1) // 2])]),
    }


def row_of_scores(case: Arrays, source: NDArray[np.int64], tokens: list[int]) -> NDArray[np.float64]:
    """Return the table row that is selected by a source and the tokens so far, with START first."""
    number = 0
    sides: tuple[Iterable[int], ...] = (source, tokens)
    for multipliers, side in zip(case["places"], sides, strict=True):
        number += sum(int(multipliers[place % PERIOD]) * (int(token) + 1) for place, token in enumerate(side))
    return case["table"][number % ROWS]


def likeliest_tokens(scores: Scores, start: int, end: int, max_len: int) -> list[int]:
    """Return the most likely tokens of one sentence, up to END or max_len tokens."""
    tokens: list[int] = []
    while len(tokens) < max_len and end not in tokens:
        tokens.append(int(np.argmax(scores([start, *tokens]))))
    return tokens


def reference(case: Arrays) -> Arrays:
    """Return the translations, sentence by sentence, padded to the longest."""
    start, end, pad = (int(token) for token in case["special"])
    enough, too_few = (int(max_len) for max_len in case["max_lens"])

    def translation(source: NDArray[np.int64], max_len: int) -> list[int]:
        def scores(tokens: list[int]) -> NDArray[np.float64]:
            row = np.array(row_of_scores(case, source, tokens))
            row[end] += SURE * (len(tokens) == length(int(np.count_nonzero(source != pad))))
            return row

        return likeliest_tokens(scores, start, end, max_len)

    def padded(sources: NDArray[np.int64], max_len: int) -> NDArray[np.float64]:
        found = [translation(source, max_len) for source in sources]
        longest = max(len(tokens) for tokens in found)
        return np.array([[*tokens, *[pad] * (longest - len(tokens))] for tokens in found], dtype=np.float64)

    return {
        "decoded": padded(case["source"], enough),
        "cut_off": padded(case["source"], too_few),
        "of_one_sentence": padded(case["source"][-1:], enough),
        "calls_for_each_token": np.ones(1),
    }


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def greedy_decode(model, source, start, end, pad, max_len):
    b = len(source)
    tokens = torch.full((b, 1), start, device=source.device)
    ended = torch.zeros(b, dtype=torch.bool, device=source.device)
    for _ in range(max_len):
        scores = model(source, tokens)[:, -1]  # (b, v)
        following = scores.argmax(dim=-1)
        following = following.masked_fill(ended, pad)
        tokens = torch.cat([tokens, following[:, None]], dim=1)
        ended = ended | (following == end)
        if ended.all():
            break
    return tokens[:, 1:]
"""

LINES = {
    "begin": "(b, 1), start,",
    "steps": "for _ in range(max_len):",
    "scores": "model(source, tokens)[:, -1]",
    "likeliest": "scores.argmax(dim=-1)",
    "padded": "following.masked_fill(ended, pad)",
    "grown": "torch.cat([tokens, following[:, None]], dim=1)",
    "ended": "ended | (following == end)",
    "stop": "if ended.all():",
    "returned": "tokens[:, 1:]",
}


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, MODEL_ANSWER, *((LINES[line], theirs) for line, theirs in lines.items()), hint=hint)


WRONG = (
    wrong("least-likely", likeliest="scores.argmin(dim=-1)"),
    wrong("second-likeliest", likeliest="scores.topk(2).indices[:, 1]"),
    wrong("start-kept", returned="tokens"),
    wrong("end-cut-off", returned="tokens[:, 1:-1]"),
    wrong(
        "end-replaced-by-padding",
        padded="following.masked_fill(ended | following.eq(end), pad)",
        ended="ended | (scores.argmax(dim=-1) == end)",
    ),
    wrong(
        "end-never-chosen",
        likeliest="scores.index_fill(1, torch.tensor([end], device=source.device), -math.inf).argmax(dim=-1)",
    ),
    wrong("goes-on-after-end", padded="following"),
    wrong("padded-once", ended="following == end"),
    wrong("end-repeated", padded="following.masked_fill(ended, end)"),
    wrong("zeros-after-end", padded="following.masked_fill(ended, 0)"),
    wrong("start-after-end", padded="following.masked_fill(ended, start)"),
    wrong("all-padded-with-the-first", padded="following if not ended.any() else torch.full_like(following, pad)"),
    wrong("stops-with-the-first", stop="if ended.any():"),
    wrong("stops-with-the-first-row", stop="if ended[0]:"),
    wrong("stops-with-the-last-row", stop="if ended[-1]:"),
    wrong("stops-when-most-have-ended", stop="if ended.sum() * 2 >= b:"),
    wrong("stops-at-max-len-only", stop="if False:"),
    wrong("all-at-once", stop="if (following == end).all():"),
    edited(
        "padded-to-max-len",
        MODEL_ANSWER,
        (LINES["returned"], "F.pad(tokens[:, 1:], (0, max_len + 1 - tokens.shape[1]), value=pad)"),
        hint="stops-at-max-len-only",
    ),
    wrong("waits-for-padding", ended="ended | (following == pad)"),
    wrong("one-too-few", steps="for _ in range(max_len - 1):"),
    wrong("one-too-many", steps="for _ in range(max_len + 1):"),
    wrong("max-len-ignored", steps="while True:"),
    wrong("as-long-as-the-source", steps="for _ in range(min(max_len, source.shape[1])):"),
    wrong("last-token-only", scores="model(source, tokens[:, -1:])[:, -1]"),
    wrong("last-two-tokens", scores="model(source, tokens[:, -2:])[:, -1]"),
    wrong("start-read-alone", scores="model(source, tokens[:, :1])[:, -1]"),
    wrong("start-not-read", scores="model(source, tokens[:, 1:] if tokens.shape[1] > 1 else tokens)[:, -1]"),
    wrong("first-position", scores="model(source, tokens)[:, 0]", hint="start-read-alone"),
    wrong("position-before-the-last", scores="model(source, tokens)[:, -2:][:, 0]"),
    wrong("all-positions", scores="model(source, tokens).sum(dim=1)"),
    wrong("exchanged", scores="model(tokens, source)[:, -1]"),
    wrong("source-not-read", scores="model(tokens, tokens)[:, -1]"),
    wrong("source-of-the-first", scores="model(source[:1].expand(b, -1), tokens)[:, -1]"),
    wrong("sources-mixed", scores="model(source.flip(0), tokens)[:, -1]"),
    wrong("source-cut", scores="model(source[:, : tokens.shape[1]], tokens)[:, -1]"),
    wrong("one-token-for-all", likeliest="scores.argmax(dim=-1)[:1].expand(b)", hint="source-of-the-first"),
    wrong("place-in-the-whole-batch", likeliest="scores.argmax().expand(b)"),
    wrong("scores-of-the-batch-added", likeliest="scores.sum(dim=0).argmax().expand(b)"),
    wrong("put-in-front", grown="torch.cat([following[:, None], tokens], dim=1)", returned="tokens[:, :-1]"),
    wrong("begins-with-padding", begin="(b, 1), pad,"),
    wrong("begins-with-end", begin="(b, 1), end,"),
    wrong("begins-with-zero", begin="(b, 1), 0,"),
    wrong("one-sentence-squeezed", returned="tokens[:, 1:].squeeze(0)"),
    wrong(
        "asks-once-more",
        stop="if False:",
        likeliest="scores.argmax(dim=-1)\n        if ended.all():\n            break",
    ),
    wrong(
        "decodes-on-and-cuts",
        stop="if False:",
        returned="tokens[:, 1 : 1 + int((tokens[:, 1:] != pad).sum(dim=1).max())]",
        hint="asks-once-more",
    ),
)

BEHAVIOURS = misbehaviours(MODEL_ANSWER, "greedy_decode", longer=(7, 13), calls=3)

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name in ("differs-the-second-time", "fits-one-length", "fits-known-sizes")),
    edited("source-changed", MODEL_ANSWER, ("    return", "    source.fill_(pad)\n    return"), hint="input-changed"),
    wrong(
        "source-viewed", scores="model(source.view(-1).view(source.shape), tokens)[:, -1]", hint="view-not-contiguous"
    ),
    wrong("sampled", likeliest="torch.multinomial(scores.softmax(dim=-1), 1)[:, 0]", hint="called-again"),
    wrong("of-floats", returned="tokens[:, 1:].float()", hint="tokens-not-whole"),
    wrong("of-small-numbers", returned="tokens[:, 1:].int()", hint="tokens-not-whole"),
    wrong(
        "lists",
        returned="[[token for token in row if token != pad] for row in tokens[:, 1:].tolist()]",
        hint="not-a-tensor",
    ),
    wrong("at-most-thirty", steps="for _ in range(min(max_len, 30)):", hint="other-sizes"),
    wrong("never-stops", steps="while True:", ended="ended | (following == -1)", hint="raises"),
    wrong("one-source-for-all", scores="model(source[:1], tokens)[:, -1]", hint="raises"),
    edited("nothing-returned", MODEL_ANSWER, ("return tokens[:, 1:]", "tokens[:, 1:]"), hint="not-a-tensor"),
)

RIGHT = {
    "without-gradients": """\
@torch.no_grad()
def greedy_decode(model, source, start, end, pad, max_len):
    tokens = source.new_full((source.shape[0], 1), start)
    ended = tokens[:, 0] == end
    while tokens.shape[1] <= max_len and not ended.all():
        likeliest = model(source, tokens)[:, -1, :].argmax(dim=1)
        likeliest[ended] = pad
        ended |= likeliest.eq(end)
        tokens = torch.cat((tokens, likeliest.unsqueeze(1)), dim=1)
    return tokens[:, 1:]
""",
    "sentence-by-sentence": """\
def greedy_decode(model, source, start, end, pad, max_len):
    translations = []
    for sentence in source:
        tokens = [start]
        while len(tokens) <= max_len and tokens[-1] != end:
            target = torch.tensor([tokens], device=source.device)
            tokens.append(model(sentence[None], target)[0, -1].argmax().item())
        translations.append(torch.tensor(tokens[1:], device=source.device))
    return nn.utils.rnn.pad_sequence(translations, batch_first=True, padding_value=pad)
""",
    "columns-in-a-list": """\
def greedy_decode(model, source, start, end, pad, max_len):
    columns = [torch.full((len(source),), start, device=source.device)]
    for step in range(max_len):
        scores = model(source, torch.stack(columns, dim=1))
        best = scores[:, -1].max(dim=-1).indices
        over = sum((column == end for column in columns), torch.zeros_like(best)) > 0
        columns.append(torch.where(over, pad, best))
        if (torch.stack(columns) == end).any(dim=0).all():
            break
    return torch.stack(columns[1:], dim=1)
""",
    "goes-on-and-pads-later": """\
def greedy_decode(model, source, start, end, pad, max_len):
    tokens = torch.full((len(source), 1), start, dtype=torch.long, device=source.device)
    for _ in range(max_len):
        following = model(source, tokens)[:, -1:].argmax(dim=-1)
        tokens = torch.cat([tokens, following], dim=1)
        if (tokens[:, 1:] == end).any(dim=1).all():
            break
    tokens = tokens[:, 1:]
    ends = (tokens == end).long()
    after = ends.cumsum(dim=1) - ends > 0  # an END before it, whatever comes later
    return tokens.masked_fill(after, pad)
""",
    "only-those-that-go-on": """\
def greedy_decode(model, source, start, end, pad, max_len):
    b = source.shape[0]
    tokens = torch.full((b, max_len + 1), pad, device=source.device)
    tokens[:, 0] = start
    alive = torch.arange(b, device=source.device)
    length = 0
    while length < max_len and len(alive):
        scores = model(source[alive], tokens[alive, : length + 1])
        length += 1
        tokens[alive, length] = scores[:, -1].argmax(-1)
        alive = alive[tokens[alive, length] != end]
    return tokens[:, 1 : length + 1]
""",
    "last-token-tells": """\
def greedy_decode(model, source, start, end, pad, max_len):
    tokens = torch.full([len(source), 1], start).to(source.device)
    for _ in range(max_len):
        over = (tokens[:, -1] == end) | (tokens[:, -1] == pad)
        if over.all():
            break
        best = model(source, tokens)[:, -1].topk(1).indices[:, 0]
        tokens = torch.hstack([tokens, torch.where(over, torch.full_like(best, pad), best)[:, None]])
    return tokens[:, 1:]
""",
    "whole-target-each-time": """\
def greedy_decode(model, source, start, end, pad, max_len):
    target = torch.full((len(source), max_len + 1), pad, device=source.device)
    target[:, 0] = start
    ended = torch.zeros(len(source), 1, dtype=torch.bool, device=source.device)
    for i in range(max_len):
        probabilities = model(source, target).softmax(dim=-1)[:, i : i + 1]  # what comes later is not read
        target[:, i + 1 : i + 2] = probabilities.argmax(dim=-1) * ~ended + pad * ended
        ended = ended | (target[:, i + 1 : i + 2] == end)
        if bool(ended.all()):
            return target[:, 1 : i + 2]
    return target[:, 1:]
""",
    "python-lists": """\
def greedy_decode(model, source, start, end, pad, max_len):
    rows = [[] for _ in source]
    while any(end not in row for row in rows) and len(rows[0]) < max_len:
        target = torch.tensor([[start] + row for row in rows], device=source.device)
        with torch.no_grad():
            best = model(source, target)[:, -1].argmax(dim=-1).tolist()
        rows = [row + [pad if end in row else token] for row, token in zip(rows, best)]
    return torch.tensor(rows, device=source.device)
""",
    "recursion": """\
def greedy_decode(model, source, start, end, pad, max_len):
    def extended(tokens, left):
        over = (tokens[:, 1:] == end).any(dim=1)
        if left == 0 or over.all():
            return tokens[:, 1:]
        scores = model(source, tokens)[:, -1].log_softmax(dim=-1)
        following = scores.argmax(dim=-1, keepdim=True).masked_fill(over[:, None], pad)
        return extended(torch.cat([tokens, following], dim=1), left - 1)

    return extended(torch.full((len(source), 1), start, device=source.device), max_len)
""",
    "scores-of-ended-changed": """\
def greedy_decode(model, source, start, end, pad, max_len):
    tokens = start * torch.ones(len(source), 1, dtype=torch.long, device=source.device)
    going_on = torch.ones(len(source), dtype=torch.bool, device=source.device)
    with torch.inference_mode():
        while going_on.any() and tokens.size(1) - 1 < max_len:
            scores = model(source, tokens)[:, -1].clone()
            scores[~going_on] = -math.inf
            scores[~going_on, pad] = 0.0
            tokens = torch.cat([tokens, scores.sort(dim=-1, descending=True).indices[:, :1]], dim=1)
            going_on = going_on & (tokens[:, -1] != end)
    return tokens[:, 1:]
""",
    "numpy": """\
import numpy as np


def greedy_decode(model, source, start, end, pad, max_len):
    tokens = np.full((len(source), 1), start)
    ended = np.zeros(len(source), dtype=bool)
    for _ in range(max_len):
        scores = model(source, torch.from_numpy(tokens).to(source.device)).detach().cpu().numpy()
        following = np.where(ended, pad, scores[:, -1].argmax(axis=-1))
        tokens = np.concatenate([tokens, following[:, None]], axis=1)
        ended |= following == end
        if ended.all():
            break
    return torch.from_numpy(tokens[:, 1:]).to(source.device)
""",
}

GREEDY_DECODE_RECORD = ValueRecord(
    public=GREEDY_DECODE,
    title="Greedy decoding",
    defines="greedy_decode",
    parts=(Part("greedy-decode-check", 3, values),),
    properties=(),
    first_sizes={"b": 5, "m": 8, "v": 6},
    other_length={"b": 7, "m": 13},
    other_sizes={"b": 4, "m": 7, "v": 11},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
