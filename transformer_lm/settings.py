"""Validation of model settings: a wrong one is refused in one sentence, before anything is built."""

from typing import Protocol


class TwoVocabularies(Protocol):
    """A config of two languages, which may share their embeddings."""

    @property
    def shared(self) -> bool:
        """Whether both have one table of word vectors."""

    @property
    def source_vocab_size(self) -> int:
        """The number of tokens of the language that is read."""

    @property
    def target_vocab_size(self) -> int:
        """The number of tokens of the language that is written."""


def require_bool(name: str, value: object) -> None:
    """Raise ValueError unless a setting is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}.")


def require_whole(name: str, value: object, lowest: int = 1) -> None:
    """Raise ValueError unless a setting is a whole number and at least `lowest`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ValueError(f"{name} must be a whole number from {lowest} on, got {value!r}.")


def require_one_vocabulary(config: TwoVocabularies) -> None:
    """Raise ValueError if a config shares embeddings between vocabularies of different size."""
    if config.shared and config.source_vocab_size != config.target_vocab_size:
        sizes = f"{config.source_vocab_size} and {config.target_vocab_size}"
        raise ValueError(f"shared embeddings must have one vocabulary for both languages, got sizes {sizes}.")
