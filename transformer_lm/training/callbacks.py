"""Reports on a training run: printed losses and samples, live curves in a notebook, files for TensorBoard.

Pass them to `train` in `reports`; each is called after every step with the model and the history.
"""

import sys
from pathlib import Path

import torch

from transformer_lm.lm import random_slices
from transformer_lm.modeling_lm import TransformerLM
from transformer_lm.sampling import continuation
from transformer_lm.texts.corpora import Corpus
from transformer_lm.training.loop import History

PROMPT = 16  # tokens of validation text that a sample continues


class PrintedReport:
    """Prints the loss of the last batch every 10 steps, and a sample every 100."""

    def __init__(
        self,
        corpus: Corpus,
        loss_every: int = 10,
        sample_every: int = 100,
        num_tokens: int = 100,
        top_k: int | None = 5,
    ) -> None:
        for name, every in (("loss_every", loss_every), ("sample_every", sample_every)):
            if every < 1:
                raise ValueError(f"{name} must be 1 or more, got {every}.")
        self.corpus = corpus
        self.loss_every, self.sample_every = loss_every, sample_every
        self.num_tokens, self.top_k = num_tokens, top_k

    def __call__(self, model: TransformerLM, history: History) -> None:
        """Print the loss or a sample if it is due."""
        if history.step % self.loss_every == 0:
            print(f"step {history.step}: loss {history.loss[-1]:.3f}")
        if history.step % self.sample_every == 0:
            print(sample_of(model, self.corpus, self.num_tokens, seed=history.step, top_k=self.top_k))
        sys.stdout.flush()


def sample_of(model: TransformerLM, corpus: Corpus, num_tokens: int, seed: int = 0, **options: object) -> str:
    """Return 16 tokens of validation text, a bar, and how the model continues them."""
    prompt = validation_prompt(corpus, seed)
    tokens = continuation(model, prompt, num_tokens, seed=seed, **options)
    decode = corpus.tokenizer.decode
    return f"{decode(prompt[0])}|{decode(tokens[0])}"


def validation_prompt(corpus: Corpus, seed: int = 0, b: int = 1) -> torch.Tensor:
    """Return prompts of 16 tokens from random positions in the validation text, (b, 16), or fewer if it is shorter."""
    return random_slices(corpus.validation, b, min(PROMPT, len(corpus.validation)), torch.Generator().manual_seed(seed))


def has_news(history: History) -> bool:
    """Return whether the validation loss was measured after the last step."""
    return bool(history.validation) and history.validation[-1][0] == history.step


class TensorBoard:
    """Writes loss, gradient norm, learning rate and validation loss where TensorBoard can read them.

    This needs the extra package tensorboard: `pip install 'transformer-lm[tensorboard]'`.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("tensorboard is not installed. Install it with: pip install tensorboard") from None
        self._writer = SummaryWriter(str(folder))

    def __call__(self, model: TransformerLM, history: History) -> None:
        """Write the numbers of the last step."""
        for name in ("loss", "gradient_norm", "learning_rate"):
            self._writer.add_scalar(name, getattr(history, name)[-1], history.step)
        if has_news(history):
            self._writer.add_scalar("validation_loss", history.validation[-1][1], history.step)
        self._writer.flush()
