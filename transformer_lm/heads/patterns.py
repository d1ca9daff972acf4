"""Patterns that a head might follow, as masks of the keys that each query would attend to.

Axes: b batch, i position of the query, j of the key. A key comes before its query, except in `current`: otherwise, with
doubled letters, a head that attends to its own position would pass for other kinds.

    PATTERNS["word_start"](tokens, alphabet)  # (b, i, j), True where j begins the word that contains i
"""

from collections.abc import Callable

import torch
from torch import Tensor

from transformer_lm.answers import sealed_while_open
from transformer_lm.heads.character_classes import Alphabet
from transformer_lm.shapes import match_axes

SPACES = ("space", "newline")
LETTERS = ("vowel", "consonant")

Pattern = Callable[[Tensor, Alphabet], Tensor]


def at_offset(offset: int) -> Pattern:
    """Return the pattern of a head that attends `offset` positions back; 0 is the query itself."""

    def pattern(tokens: Tensor, alphabet: Alphabet) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return (places[:, None] - places == offset).expand(len(tokens), -1, -1)

    return pattern


def first(tokens: Tensor, alphabet: Alphabet) -> Tensor:
    """Return where the key is the very first position."""
    return _before(tokens) & (torch.arange(tokens.shape[1], device=tokens.device) == 0)


@sealed_while_open("induction-pattern")
def duplicate(tokens: Tensor, alphabet: Alphabet) -> Tensor:
    """Return where the key is the same token as the query, anywhere before it."""
    return _before(tokens) & (tokens[:, :, None] == tokens[:, None, :])


def same_letter(tokens: Tensor, alphabet: Alphabet) -> Tensor:
    """Return where the key is the same letter as the query in either case, anywhere before it."""
    return duplicate(alphabet.letters.to(tokens.device)[tokens], alphabet)


def previous_space(tokens: Tensor, alphabet: Alphabet) -> Tensor:
    """Return where the key is the last space or line break before the query."""
    return _latest(_before(tokens) & _of(tokens, alphabet, *SPACES)[:, None, :])


def any_space(tokens: Tensor, alphabet: Alphabet) -> Tensor:
    """Return where the key is a space or line break before the query."""
    return _keys(*SPACES)(tokens, alphabet)


def word_start(tokens: Tensor, alphabet: Alphabet) -> Tensor:
    """Return where the key is the first letter of the word that contains the query."""
    in_word = _of(tokens, alphabet, *LETTERS)  # (b, n)
    starts = in_word.clone()
    starts[:, 1:] &= ~in_word[:, :-1]
    up_to = _before(tokens) | at_offset(0)(tokens, alphabet)
    return _latest(up_to & starts[:, None, :]) & in_word[:, :, None] & _before(tokens)


@sealed_while_open("induction-pattern")
def induction(tokens: Tensor, alphabet: Alphabet) -> Tensor:
    """Return where the key follows an earlier occurrence of the query's token: what came next the previous times.

    Olsson et al., In-context Learning and Induction Heads, 2022, arXiv:2209.11895.
    """
    followed = duplicate(tokens, alphabet).roll(1, dims=2)  # the key after the duplicate
    return followed & _before(tokens)  # the last column, which wraps around to the front, is never a duplicate


def _between(query_class: str, key_class: str) -> Pattern:
    def pattern(tokens: Tensor, alphabet: Alphabet) -> Tensor:
        return _of(tokens, alphabet, query_class)[:, :, None] & _keys(key_class)(tokens, alphabet)

    pattern.__doc__ = f"Return where the query is a {query_class} and the key a {key_class} before it."
    return pattern


def _keys(*classes: str) -> Pattern:
    def pattern(tokens: Tensor, alphabet: Alphabet) -> Tensor:
        return _before(tokens) & _of(tokens, alphabet, *classes)[:, None, :]

    pattern.__doc__ = f"Return where the key is a {' or '.join(classes)} before the query."
    return pattern


PATTERNS: dict[str, Pattern] = {
    "current": at_offset(0),
    "previous": at_offset(1),
    "first": first,
    "duplicate": duplicate,
    "same_letter": same_letter,
    "previous_space": previous_space,
    "any_space": any_space,
    "word_start": word_start,
    "vowel_to_consonant": _between("vowel", "consonant"),
    "consonant_to_vowel": _between("consonant", "vowel"),
    "punctuation": _keys("punctuation"),
    "newline": _keys("newline"),
    "induction": induction,
}


@sealed_while_open("induction-pattern")
def _before(tokens: Tensor) -> Tensor:
    """Return where the key comes before the query, (b, i, j)."""
    n = match_axes(tokens=(tokens, "b n"))["n"]
    return torch.ones(len(tokens), n, n, dtype=torch.bool, device=tokens.device).tril(-1)


def _latest(mask: Tensor) -> Tensor:
    """Return a mask (b, i, j) that keeps only the last key of each query."""
    later = mask.flip(-1).cumsum(-1).flip(-1)  # how many keys of the mask are at j or after it
    return mask & (later == 1)


def _of(tokens: Tensor, alphabet: Alphabet, *classes: str) -> Tensor:
    """Return which tokens are of one of these classes, (b, n)."""
    return alphabet.is_one_of(*classes).to(tokens.device)[tokens]
