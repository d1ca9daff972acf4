"""Models with planted heads: their weights are constructed, not trained, so that we know what each head does.

A detector that finds exactly these heads can be trusted with heads of trained models.

    model = planted_model([["previous", "first"], ["induction", "uniform"]], tokenizer, max_len=40)

Each position is a vector of zeros and ones: its token, its position and, once a head of layer 0 has copied it,
the token before. A head's scores can then be any table over pairs of such features. A random rotation hides the table
from the eye, not from the model.
"""

import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_lm.heads.character_classes import Alphabet
from transformer_lm.heads.patterns import LETTERS, SPACES
from transformer_lm.modeling_lm import LMBlock, LMConfig, TransformerLM
from transformer_lm.texts.tokenizers import CharTokenizer, Tokenizer

COPIED = 40.0  # so sharp that a head copies one token and nothing else
UPPER, LOWER, MARKS = "ABEHIST", "abcdeghilmnorstu", ".,;!"
CHARACTERS = f"\n {MARKS}{UPPER}{LOWER}"
NOTHING = ("uniform", "random")  # heads that do nothing with a name


def planted_model(
    plan: Sequence[Sequence[str]], tokenizer: Tokenizer, max_len: int, sharpness: float = 12.0, seed: int = 0
) -> TransformerLM:
    """Return a language model whose heads follow a plan, a list of kinds for each layer.

    Kinds are the names of patterns, "offset 3" for a distance, "uniform", and "random", which attends by
    meaningless rules. "word_start" and "induction" need a head of kind "previous" in layer 0, which gives them the
    token before each token; "induction" must be in the last layer, and is the only kind that writes to the output.
    `sharpness` is the logarithm of the ratio between a head's weight on a key of its pattern and on another.

    Raises ValueError for an unknown kind, or one in a layer where it cannot work.
    """
    _check(plan)
    h, v = len(plan[0]), tokenizer.vocab_size
    features = _Features(Alphabet.of(tokenizer), max_len, random.Random(seed))
    copies = any(kind in ("word_start", "induction") for layer in plan for kind in layer)
    width = features.size + v  # with room for the output of induction
    dh = features.size
    config = LMConfig(
        vocab_size=v, max_len=max_len, hidden=max(h * dh, math.ceil(width / h) * h), num_layers=len(plan), num_heads=h,
        mlp_hidden=1, norm="rms", bias=False, tied=False,
    )  # fmt: skip
    model = TransformerLM(config)
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.linalg.qr(torch.randn(config.hidden, config.hidden, generator=generator)).Q  # one row per feature
    token, place, before = (hidden[part] for part in features.parts)
    found = hidden[features.size : features.size + v]
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            if parameter.dim() == 2:
                parameter.zero_()
        model.embed.tokens.weight.copy_(token)
        assert model.embed.positions is not None
        model.embed.positions.weight.copy_(place)
        model.unembed.weight.copy_(COPIED / math.sqrt(config.hidden) * found)
        for layer, kinds in enumerate(plan):
            ones = 2 + (copies and layer > 0)  # in the vector of a position, whose norm is therefore known
            scale = math.sqrt(config.hidden / ones)
            block = model.blocks[layer]
            assert isinstance(block, LMBlock)
            attention = block.attention
            width = config.hidden // h
            for head, kind in enumerate(kinds):
                rows = slice(head * width, (head + 1) * width)
                copying = copies and layer == 0 and kind == "previous" and "previous" not in kinds[:head]
                table = features.scores(kind, COPIED if copying or kind == "induction" else sharpness)
                left, sizes, right = torch.linalg.svd(table)
                root = (sizes * math.sqrt(width)).sqrt()[:, None] / scale
                attention.q.weight[rows][: len(root)] = root * left.T @ hidden[: features.size]
                attention.k.weight[rows][: len(root)] = root * right @ hidden[: features.size]
                if copying or kind == "induction":
                    attention.v.weight[rows][:v] = token / scale
                    attention.mix.weight[:, rows][:, :v] = (before if copying else found).T
    return model.eval()


def planted_text(rng: random.Random, length: int) -> str:
    """Return a text of random words, sentences and lines, with the characters that planted heads attend to."""
    text = ""
    while len(text) < length:
        word = "".join(rng.choice(LOWER) for _ in range(rng.randint(1, 6)))
        if not text or text[-2:-1] in ".!\n" or rng.random() < 0.2:
            word = rng.choice(UPPER) + word
        text += word + rng.choice((" ", " ", " ", *(f"{mark} " for mark in MARKS), ".\n"))
    return text[:length]


def planted_tokenizer() -> CharTokenizer:
    """Return a tokenizer of the characters in `planted_text`."""
    return CharTokenizer.of(CHARACTERS)


class _Features:
    """Tables of scores over the features of a query (rows) and of a key (columns)."""

    def __init__(self, alphabet: Alphabet, n: int, rng: random.Random) -> None:
        self.alphabet, self.n, self.rng = alphabet, n, rng
        v = len(alphabet.characters)
        self.size = v + n + v
        self.parts = slice(0, v), slice(v, v + n), slice(v + n, self.size)

    def scores(self, kind: str, sharpness: float) -> Tensor:
        """Return the contribution of each pair of features to the score of a query and a key, (size, size)."""
        tokens, places, before = self.parts
        alphabet, table = self.alphabet, torch.zeros(self.size, self.size)
        if kind == "current" or kind == "previous" or kind.startswith("offset"):
            table[places, places] = sharpness * _diagonal(self.n, _offset(kind))
        elif kind == "first":
            table[places, places.start] = sharpness
        elif kind in ("duplicate", "same_letter"):
            letters = alphabet.letters if kind == "same_letter" else torch.arange(len(alphabet.characters))
            table[tokens, tokens] = sharpness * (letters[:, None] == letters)
            self._leave_out_itself(table, sharpness)
        elif kind == "previous_space":
            self._latest(table, alphabet.is_one_of(*SPACES), tokens, sharpness)
            self._leave_out_itself(table, 4 * sharpness * self.n)
        elif kind == "word_start":
            self._latest(table, ~alphabet.is_one_of(*LETTERS), before, sharpness)
            table[places, tokens] += 2 * sharpness * self.n * alphabet.is_one_of(*LETTERS)
            table[places, places.start] += 2 * sharpness * self.n
        elif kind == "induction":
            table[tokens, before] = sharpness * torch.eye(len(alphabet.characters))
            table[places, places.start] = -2 * sharpness  # it has no predecessor and has copied itself
        elif kind == "random":
            shape = len(alphabet.characters), len(alphabet.characters)
            drawn = [self.rng.gauss(0, 1) for _ in range(shape[0] * shape[1])]
            table[tokens, tokens] = torch.tensor(drawn).view(shape)
        elif kind in CLASS_PAIRS:
            queries, keys = CLASS_PAIRS[kind]
            asks = alphabet.is_one_of(*queries) if queries else torch.ones(len(alphabet.characters))
            table[tokens, tokens] = sharpness * asks[:, None] * alphabet.is_one_of(*keys)
            self._leave_out_itself(table, sharpness)
        return table

    def _latest(self, table: Tensor, wanted: Tensor, part: slice, sharpness: float) -> None:
        """Prefer the last key with a wanted feature: each position adds to the score, a wanted feature adds more."""
        places = self.parts[1]
        table[places, places] += sharpness * torch.arange(self.n)
        table[places, part] += 2 * sharpness * self.n * wanted

    def _leave_out_itself(self, table: Tensor, sharpness: float) -> None:
        places = self.parts[1]
        table[places, places] -= 2 * sharpness * torch.eye(self.n)


CLASS_PAIRS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "any_space": ((), SPACES),
    "vowel_to_consonant": (("vowel",), ("consonant",)),
    "consonant_to_vowel": (("consonant",), ("vowel",)),
    "punctuation": ((), ("punctuation",)),
    "newline": ((), ("newline",)),
}
KINDS = (
    "current", "previous", "first", "duplicate", "same_letter", "previous_space", "word_start", "induction",
    *CLASS_PAIRS, *NOTHING,
)  # fmt: skip


def _offset(kind: str) -> int:
    return {"current": 0, "previous": 1}[kind] if kind in ("current", "previous") else int(kind.split()[1])


def _diagonal(n: int, offset: int) -> Tensor:
    places = torch.arange(n)
    return (places[:, None] - places == offset).float()


def _check(plan: Sequence[Sequence[str]]) -> None:
    if not plan or not plan[0] or len({len(layer) for layer in plan}) > 1:
        raise ValueError("plan must be layers with the same number of heads, got others.")
    for number, layer in enumerate(plan):
        for kind in layer:
            is_offset = kind.startswith("offset ") and kind.removeprefix("offset ").isdecimal()
            if kind not in KINDS and not is_offset:
                raise ValueError(f"kinds must be among {', '.join(KINDS)} and offset N, got {kind!r}.")
            if kind in ("word_start", "induction") and (number == 0 or "previous" not in plan[0]):
                raise ValueError(f"{kind} must come after a layer 0 with a previous head, got layer {number}.")
            if kind == "induction" and number < len(plan) - 1:
                raise ValueError(f"induction must be in the last layer, got layer {number} of {len(plan)}.")
