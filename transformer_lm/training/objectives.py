"""The tasks of `train`, language modelling and translation: each has its batches, its loss and its validation.

Axes: b batch, m positions of the source, n of the target or text.
"""

import random

import torch
from torch import Tensor, nn

from transformer_lm.lm import batch_to_labeled_samples, compute_loss, evaluating, loss_per_token, random_slices
from transformer_lm.modeling_encoder_decoder import EncoderDecoderConfig
from transformer_lm.modeling_lm import LMConfig
from transformer_lm.texts.corpora import Corpus
from transformer_lm.texts.pairs import Pair, PairCorpus, padded_pairs, pair_batches
from transformer_lm.texts.word_tokenizers import END, PAD, START
from transformer_lm.training.checkpoints import Model
from transformer_lm.translation.targets import shift_target, translation_loss

EVALUATED = 250  # pairs in a batch for validation


class LanguageModelling:
    """Next-token prediction on random slices of a text."""

    def __init__(self, model: Model, corpus: Corpus, batch_size: int, seed: int) -> None:
        config = model.config
        if not isinstance(config, LMConfig):
            raise ValueError(f"model must be a language model for a corpus of text, got {type(model).__name__}.")
        if corpus.tokenizer.vocab_size != config.vocab_size:
            sizes = f"{config.vocab_size} and {corpus.tokenizer.vocab_size}"
            raise ValueError(f"model and corpus must have the same number of tokens, got {sizes}.")
        for part in ("train", "validation"):
            if len(getattr(corpus, part)) <= config.max_len:
                raise ValueError(
                    f"the {part} text must be longer than max_len={config.max_len}, "
                    f"got {len(getattr(corpus, part))} tokens: take a longer text or a smaller max_len."
                )
        self.corpus, self.batch_size, self.seed, self.max_len = corpus, batch_size, seed, config.max_len

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Return the slices of a step, (b, n + 1), which depend only on seed and step."""
        seed = random.Random(f"{self.seed} {step}").getrandbits(63)
        generator = torch.Generator().manual_seed(seed)
        return (random_slices(self.corpus.train, self.batch_size, self.max_len + 1, generator),)

    def num_labels(self, portion: tuple[Tensor, ...]) -> int:
        """Return the number of labels over which the loss of a portion is averaged."""
        b, length = portion[0].shape
        return b * (length - 1)

    def loss(self, model: nn.Module, portion: tuple[Tensor, ...]) -> Tensor:
        """Return the loss of a portion of a batch, averaged over its labels."""
        inputs, labels = batch_to_labeled_samples(*portion)
        return compute_loss(model(inputs), labels)

    def validation_loss(self, model: nn.Module) -> float:
        """Return the loss on the validation text, in nats per token."""
        return loss_per_token(model, self.corpus.validation, self.max_len)


class Translation:
    """Next-token prediction at every position of a translation (teacher forcing), on pairs of similar length."""

    def __init__(self, model: Model, corpus: PairCorpus, batch_size: int, seed: int, smoothing: float) -> None:
        config = model.config
        if isinstance(config, LMConfig):
            raise ValueError(f"model must translate for a corpus of pairs, got {type(model).__name__}.")
        ours = (corpus.source_tokenizer.vocab_size, corpus.target_tokenizer.vocab_size)
        theirs = (config.source_vocab_size, config.target_vocab_size)
        if ours != theirs:
            raise ValueError(f"model and corpus must have the same numbers of tokens, got {theirs} and {ours}.")
        if len(corpus.train) < batch_size:
            raise ValueError(
                f"batch_size must be at most {len(corpus.train)}, the pairs to train on, got {batch_size}."
            )
        longest = max(max(len(source), len(target) + 1) for source, target in (*corpus.train, *corpus.validation))
        if isinstance(config, EncoderDecoderConfig) and longest > config.max_len:
            raise ValueError(f"max_len must be {longest}, the longest sentence, or more, got {config.max_len}.")
        self.corpus, self.batch_size, self.seed, self.smoothing = corpus, batch_size, seed, smoothing
        self._epoch: tuple[int, list[list[Pair]]] = (-1, [])

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Return sources, decoder inputs and labels of a step, (b, m), (b, n) and (b, n), given only seed and step."""
        epoch, place = divmod(step, len(self.corpus.train) // self.batch_size)
        if self._epoch[0] != epoch:
            self._epoch = epoch, self._batches(f"{self.seed} {epoch}")
        return _labeled(self._epoch[1][place])

    def _batches(self, seed: str) -> list[list[Pair]]:
        """Return the full batches of an epoch. Random pairs are left over, otherwise it would be the longest."""
        pairs = self.corpus.train
        chosen = random.Random(seed).sample(pairs, len(pairs) // self.batch_size * self.batch_size)
        return [[chosen[pair] for pair in batch] for batch in pair_batches(chosen, self.batch_size, seed)]

    def num_labels(self, portion: tuple[Tensor, ...]) -> int:
        """Return the number of labels over which the loss of a portion is averaged, without padding."""
        return int((portion[-1] != PAD).sum())

    def loss(self, model: nn.Module, portion: tuple[Tensor, ...]) -> Tensor:
        """Return the loss of a portion of a batch, averaged over its labels."""
        source, inputs, labels = portion
        return translation_loss(model(source, inputs), labels, PAD, self.smoothing)

    @torch.no_grad()
    def validation_loss(self, model: nn.Module) -> float:
        """Return the loss on the validation pairs, in nats per token, without label smoothing."""
        pairs = sorted(self.corpus.validation, key=lambda pair: len(pair[1]))
        total, count = 0.0, 0
        with evaluating(model) as device:
            for start in range(0, len(pairs), EVALUATED):
                source, inputs, labels = (tensor.to(device) for tensor in _labeled(pairs[start : start + EVALUATED]))
                tokens = self.num_labels((labels,))
                total += translation_loss(model(source, inputs), labels, PAD).item() * tokens
                count += tokens
        return total / count


def _labeled(pairs: list[Pair]) -> tuple[Tensor, ...]:
    source, target = padded_pairs(pairs)
    return source, *shift_target(target, START, END, PAD)
