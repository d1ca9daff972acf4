"""Check of topic 04: a model that was trained on the toy grammar and is submitted as a file.

Students train; grading measures the loss on sentences drawn for each submission. This file defines which models are
accepted, and how many points each loss is worth.
"""

import functools
import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.failure import CheckFailed, passed
from transformer_lm.lm import loss_per_token
from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.texts.corpora import load_toy
from transformer_lm.texts.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from transformer_lm.texts.toy_grammar import CHARACTERS
from transformer_lm.training.checkpoints import load_model, read_header
from transformer_lm.training.pretrained import FOLDER

FILE = "my_model.safetensors"
LARGEST = 40_000_000  # bytes
LIMITS = {"vocab_size": 300, "max_len": 512, "hidden": 384, "num_layers": 8, "num_heads": 16, "mlp_hidden": 1536}
AT_ONCE = 8  # windows, to limit the memory that a model takes
TEXT = 300  # characters of an error message
LARGE = 1000  # entries of a weight matrix
ALIKE = 0.95  # the cosine of two matrices; it is near 0 if they were trained separately
SAVE = hint("no-file", "training-run")


@dataclass(frozen=True)
class FileExercise:
    """The public part of an exercise whose answer is a file: `goals` are losses and the points for them."""

    id: str
    file: str
    goals: tuple[tuple[float, int], ...]

    def check(self, path: str | os.PathLike) -> None:
        """Print one line if the model in a file is worth full points, else raise CheckFailed."""
        corpus = load_toy()
        loss = self.loss(Path(path), corpus.tokenizer.decode(corpus.validation))
        points = self.points(loss)
        if points < self.points(0.0):
            raise self.too_high(loss)
        passed(self.id, f"{loss:.3f} nats per character on validation text, enough for all {points} points.")

    def points(self, loss: float) -> int:
        """Return the points for a loss."""
        return next((points for goal, points in self.goals if loss <= goal), 0)

    def too_high(self, loss: float) -> CheckFailed:
        """Return the failure for a loss that is not worth full points."""
        better = [f"{goal} for {points}" for goal, points in self.goals if not loss <= goal]
        return CheckFailed(
            f"the model in {self.file} on sentences of the grammar that it has not seen",
            f"a loss of {loss:.3f} nats per character, for {self.points(loss)} points",
            f"at most {', '.join(better)} points",
            hint("never-trained", "training-run"),
            earned=self.points(loss),
        )

    def loss(self, path: Path, text: str) -> float:
        """Return the loss of the model in a file on a text, or raise CheckFailed if it cannot be measured."""
        model, tokenizer = self._read(path)
        if tokenizer.decode(tokenizer.encode(CHARACTERS)) != CHARACTERS:
            known = hint("one-token-for-all", "training-run")
            raise self._failed("a tokenizer that takes different characters for one", "one token per character", known)
        loss = loss_per_token(model, torch.tensor(tokenizer.encode(text)), model.config.max_len, b=AT_ONCE)
        if not math.isfinite(loss):
            raise self._failed(f"a loss of {loss}", "a number", hint("no-numbers", "training-run"))
        return loss

    def _read(self, path: Path) -> tuple[TransformerLM, Tokenizer]:
        if not path.is_file() or path.is_symlink():
            raise self._failed("no such file", "a model", SAVE)
        if path.stat().st_size > LARGEST:
            known = hint("too-large", "training-run")
            raise self._failed(f"a file of {path.stat().st_size:,} bytes", f"{LARGEST:,} bytes at most", known)
        try:
            config, tokenizer = read_header(path)
            if not isinstance(config, LMConfig) or not isinstance(tokenizer, CharTokenizer | ByteTokenizer):
                raise ValueError(f"the model must be a language model of characters, got {type(config).__name__}.")
            self._check_size(config)
            tokenizer.encode(CHARACTERS)
            model, tokenizer = load_model(path)
        except (ValueError, RuntimeError, MemoryError) as error:  # RuntimeError: torch cannot use such values
            problem = str(error).replace(str(path), self.file)[:TEXT]
            raise self._failed(problem, "a model of this course", SAVE) from None
        assert isinstance(model, TransformerLM)
        assert isinstance(tokenizer, CharTokenizer | ByteTokenizer)
        if _comes_with_the_course(model):
            known = hint("weights-of-the-course", "training-run")
            raise self._failed("weights that come with the course", "weights that you have trained", known)
        return model, tokenizer

    def _check_size(self, config: LMConfig) -> None:
        for name, largest in LIMITS.items():
            if (getattr(config, name) or 0) > largest:
                known = hint("too-long-a-context", "training-run")
                raise self._failed(f"{name} is {getattr(config, name)}", f"{name} of {largest} at most", known)

    def _failed(self, yours: str, expected: str, known: str) -> CheckFailed:
        return CheckFailed(f"to read {self.file}", yours, expected, known)


def _comes_with_the_course(model: TransformerLM) -> bool:
    """Return whether a model shares a large weight matrix with one that comes with the course.

    Another context length or order of characters changes some matrices and leaves the others unchanged.
    """
    theirs = [table for table in model.parameters() if table.numel() >= LARGE]
    pairs = [(table, own) for table in theirs for own in _shipped() if table.shape == own.shape]
    return any(F.cosine_similarity(table.flatten(), own.flatten(), dim=0) > ALIKE for table, own in pairs)


@functools.cache
def _shipped() -> list[Tensor]:
    """Return the large weight matrices of the trained language models that come with the course."""
    models = [load_model(path)[0] for path in sorted(FOLDER.glob("*.safetensors"))]
    return [table for model in models for table in model.parameters() if table.numel() >= LARGE]


TRAINING_RUN = FileExercise("training-run", FILE, goals=((0.49, 4), (0.52, 3), (0.7, 2), (1.2, 1)))


def training_run(path: str | os.PathLike = FILE) -> None:
    """Check the model in a file: its loss on the validation text of the toy grammar."""
    TRAINING_RUN.check(path)
