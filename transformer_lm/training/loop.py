"""Train a model on a corpus with a recipe; a run that is killed at any moment can be resumed exactly.

A text corpus trains language models, a corpus of pairs translation models: see objectives.py.

Under `torchrun` each process takes a part of every batch, and all end with the same weights.
"""

import math
import textwrap
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm.auto import tqdm

from transformer_lm.texts.corpora import Corpus
from transformer_lm.texts.pairs import PairCorpus
from transformer_lm.training.checkpoints import (
    Model,
    has_checkpoints,
    load_checkpoint,
    load_weights,
    newest_checkpoint,
    save_checkpoint,
    save_model,
)
from transformer_lm.training.muon import Muon
from transformer_lm.training.objectives import LanguageModelling, Translation

OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("constant", "cosine", "plateau")
PRECISIONS = ("auto", "float32", "bfloat16")
LOWEST = 0.1  # the fraction of the learning rate at which a cosine ends


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of training.

    With `optimizer` `adamw`, AdamW trains all parameters; with `muon`, Muon trains the matrices in the blocks, with
    `matrix_learning_rate`, and AdamW the others. The learning rate rises over the first `warmup` steps. Then it stays
    `constant`, falls as a `cosine` to a tenth, or stays on a `plateau` and falls linearly to 0 over the last fraction
    `decay` of all steps. A gradient with a norm above `clip` is scaled down to it. If memory is short, a batch of
    `batch_size` slices or pairs is processed in `accumulation` portions. `precision` `auto` uses bfloat16 where it
    makes the device faster. `label_smoothing` is for translation: see `translation_loss`.
    """

    steps: int
    batch_size: int = 16
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    matrix_learning_rate: float = 0.02
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    schedule: str = "cosine"
    warmup: int = 0
    decay: float = 0.7
    clip: float | None = 1.0
    accumulation: int = 1
    precision: str = "auto"
    seed: int = 0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        for name, lowest in (("steps", 1), ("batch_size", 1), ("warmup", 0), ("accumulation", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ValueError(f"{name} must be a whole number from {lowest} on, got {value!r}.")
        for name in ("learning_rate", "matrix_learning_rate", *(() if self.clip is None else ("clip",))):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, got {getattr(self, name)!r}.")
        for name, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}.")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must be 0 or more, got {self.weight_decay!r}.")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be at least 0 and below 1, got {self.label_smoothing!r}.")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, got {self.decay!r}.")
        if self.batch_size % self.accumulation:
            raise ValueError(f"accumulation must divide batch_size, got {self.accumulation} and {self.batch_size}.")

    def share(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0, as a fraction of the highest.

        The first step of a warm-up takes 1 / warmup of it: at a rate of 0, as in some courses, that step would
        change nothing. After the last step the rate keeps the schedule's final value.
        """
        step = min(step, self.steps)
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.schedule == "cosine":
            progress = (step - self.warmup) / max(1, self.steps - self.warmup)
            return LOWEST + (1 - LOWEST) * 0.5 * (1 + math.cos(math.pi * progress))
        if self.schedule == "plateau":
            return min(1.0, (self.steps - step) / (self.steps * self.decay))
        return 1.0


@dataclass
class History:
    """The history of training: numbers for each step, and the validation loss after some steps.

    `gradient_norm` is the norm of the gradient before clipping. Losses are in nats per token.
    """

    loss: list[float] = field(default_factory=list)
    gradient_norm: list[float] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def step(self) -> int:
        """The number of steps so far."""
        return len(self.loss)


Report = Callable[[Any, History], None]


def train(
    model: Model,
    corpus: Corpus | PairCorpus,
    recipe: Recipe,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    save_every: int = 100,
    evaluate_every: int | None = None,
    reports: Iterable[Report] = (),
    progress: bool = True,
) -> History:
    """Train a model on the corpus and return the history.

    With a `folder`, a checkpoint is written there after every `save_every` steps, and at the end the model itself, as
    `model.safetensors`. With `resume`, training continues from the newest checkpoint there, if there is one; with the
    same recipe, the losses are exactly those of a run that was never interrupted. The validation loss is measured after
    every `evaluate_every` steps, and at the end. `reports` are called after each step; see callbacks.py.

    Raises ValueError if model and corpus do not fit, or the folder holds another run, or a text is shorter than the
    model's context, or a sentence longer; FloatingPointError if loss or gradient is no longer finite, which keeps
    the last checkpoint.
    """
    folder, reports = None if folder is None else Path(folder), tuple(reports)
    run = _Run(model, corpus, recipe)
    if folder is not None and has_checkpoints(folder):
        if not resume:
            raise ValueError(f"folder must be empty, got {folder}, which holds a run: resume it, or choose another.")
        run.resume(folder)
    for name, every in (("save_every", save_every), ("evaluate_every", evaluate_every)):
        if every is not None and every < 1:
            raise ValueError(f"{name} must be 1 or more, got {every}.")
    history, main = run.history, run.rank == 0
    bar = tqdm(total=recipe.steps, initial=history.step, disable=not (progress and main), unit="step")
    with bar:
        while history.step < recipe.steps:
            started = time.perf_counter()
            run.step()
            history.seconds += time.perf_counter() - started
            last = history.step == recipe.steps
            if main and (last or (evaluate_every and history.step % evaluate_every == 0)):
                run.evaluate()
            if main and folder is not None and (last or history.step % save_every == 0):
                run.save(folder)
            bar.update()
            bar.set_postfix(loss=f"{history.loss[-1]:.3f}", refresh=False)
            for report in reports if main else ():
                report(model, history)
    if main and (not history.validation or history.validation[-1][0] < history.step):
        run.evaluate()  # the run was planned to be longer when it was stopped here
    if main and folder is not None:
        save_model(folder / "model.safetensors", model, corpus.tokenizer)
    return history


class _Run:
    """A model in training: its optimizers, its random numbers, and its history so far."""

    def __init__(self, model: Model, corpus: Corpus | PairCorpus, recipe: Recipe) -> None:
        self.model, self.corpus, self.recipe = model, corpus, recipe
        self.task: Translation | LanguageModelling
        if isinstance(corpus, PairCorpus):
            self.task = Translation(model, corpus, recipe.batch_size, recipe.seed, recipe.label_smoothing)
        elif recipe.label_smoothing:
            raise ValueError(f"label_smoothing must be 0 for a language model, got {recipe.label_smoothing!r}.")
        else:
            self.task = LanguageModelling(model, corpus, recipe.batch_size, recipe.seed)
        self.device = next(model.parameters()).device
        together = dist.is_available() and dist.is_initialized()
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        if recipe.batch_size % (self.world * recipe.accumulation):
            shares = f"{self.world} processes times {recipe.accumulation} portions"
            raise ValueError(f"batch_size must be a multiple of {shares}, got {recipe.batch_size}.")
        self.parallel = DistributedDataParallel(model) if self.world > 1 else model
        self.optimizers = make_optimizers(model, recipe)
        self.history = History()
        torch.manual_seed(recipe.seed)  # for dropout; slices have a separate generator

    def resume(self, folder: Path) -> None:
        """Go back to the newest checkpoint."""
        checkpoint = load_checkpoint(newest_checkpoint(folder))
        for name, ours in self._identity().items():
            if checkpoint.table.get(name) != ours:
                got = textwrap.shorten(str(checkpoint.table.get(name)), 300, placeholder="...")  # vocabularies are long
                raise ValueError(f"{checkpoint.path} must be of the same {name}, got {got}.")
        if checkpoint.step > self.recipe.steps:
            raise ValueError(
                f"steps must be at least {checkpoint.step}, the steps already taken, got {self.recipe.steps}."
            )
        load_weights(self.model, checkpoint.weights, checkpoint.path)
        load_optimizers(self.optimizers, checkpoint.optimizer, checkpoint.path)
        torch.set_rng_state(checkpoint.random["cpu"])
        if self.device.type == "cuda" and "cuda" in checkpoint.random:
            torch.cuda.set_rng_state(checkpoint.random["cuda"], self.device)
        table = checkpoint.table["history"]
        self.history = History(**table | {"validation": [tuple(pair) for pair in table["validation"]]})

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        randomness = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            randomness["cuda"] = torch.cuda.get_rng_state(self.device)
        table = self._identity() | {"recipe": asdict(self.recipe), "history": asdict(self.history)}
        tensors = optimizer_tensors(self.optimizers)
        save_checkpoint(folder, self.history.step, self.model, self.corpus.tokenizer, tensors, randomness, table)

    def _identity(self) -> dict:
        """Return the settings that must be the same when a run is resumed."""
        return {
            "config": asdict(self.model.config),
            "tokenizer": self.corpus.tokenizer.as_table(),
            "corpus": self.corpus.name,
            "tokens": len(self.corpus.train),
        }

    def step(self) -> None:
        """Take one step and record it in the history."""
        recipe, step = self.recipe, self.history.step
        share = recipe.share(step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = share * group["highest"]
        self.model.train()
        loss = self._backward(step)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip or math.inf).item()
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise FloatingPointError(
                f"loss and gradient must be finite, got {loss} and {norm} in step {step + 1}. A lower learning rate, "
                "more warm-up steps or a smaller clip may help; the last checkpoint, if any, is still there."
            )
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.history.loss.append(loss)
        self.history.gradient_norm.append(norm)
        self.history.learning_rate.append(share * recipe.learning_rate)

    def evaluate(self) -> None:
        """Record the validation loss."""
        self.history.validation.append((self.history.step, self.task.validation_loss(self.model)))

    def _backward(self, step: int) -> float:
        """Compute the gradient of a batch, portion by portion, and return its loss."""
        batch = self.task.batch(step)  # the same in all processes
        mine = tuple(tensor[self.rank :: self.world].to(self.device) for tensor in batch)
        portions = list(zip(*(tensor.chunk(self.recipe.accumulation) for tensor in mine), strict=True))
        labels, total = self.task.num_labels(batch), torch.zeros((), device=self.device)
        for number, portion in enumerate(portions):
            share = self.task.num_labels(portion) / labels * self.world  # gradients are averaged over processes
            # Processes exchange gradients only once, with the last portion.
            parallel, waits = self.parallel, number + 1 < len(portions)
            with parallel.no_sync() if isinstance(parallel, DistributedDataParallel) and waits else nullcontext():
                with self._precision():
                    loss = self.task.loss(self.parallel, portion) * share
                loss.backward()
            total = total + loss.detach()
        if self.world > 1:
            dist.all_reduce(total)
            total /= self.world
        return total.item()

    def _precision(self) -> torch.autocast:
        wanted = self.recipe.precision
        if wanted == "auto":
            gains = self.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
            wanted = "bfloat16" if gains else "float32"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=wanted == "bfloat16")


def make_optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a recipe; each group stores its highest learning rate.

    Weight decay is only for matrices.
    """
    with_muon = recipe.optimizer == "muon"
    matrices: list[nn.Parameter] = []
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = "blocks." in name and name.endswith(".weight") and parameter.dim() == 2
        kind = matrices if is_matrix and with_muon else decaying if parameter.dim() == 2 else others
        kind.append(parameter)
    if with_muon and not matrices:
        raise ValueError(f"optimizer must be adamw for a model without blocks, got muon for {type(model).__name__}.")
    groups = [{"params": decaying, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    adamw = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, fused=True)
    optimizers: list[torch.optim.Optimizer] = [adamw]
    if with_muon:
        optimizers.append(Muon(matrices, lr=recipe.matrix_learning_rate))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["highest"] = group["lr"]
    return optimizers


def optimizer_tensors(optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return the state of optimizers by names such as `0.12.exp_avg`, for optimizer, parameter and kind."""
    return {
        f"{place}.{index}.{name}": tensor
        for place, optimizer in enumerate(optimizers)
        for index, memory in optimizer.state_dict()["state"].items()
        for name, tensor in memory.items()
    }


def load_optimizers(optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor], path: Path) -> None:
    """Restore the state of optimizers. Raises ValueError if it belongs to other optimizers."""
    for place, optimizer in enumerate(optimizers):
        table = optimizer.state_dict()
        ours = {name: tensor for name, tensor in tensors.items() if name.startswith(f"{place}.")}
        for name, tensor in ours.items():
            _, index, what = name.split(".")
            table["state"].setdefault(int(index), {})[what] = tensor
        count = sum(len(group["params"]) for group in table["param_groups"])
        if len(table["state"]) != count:
            raise ValueError(f"{path} must be of a run with the same optimizer, got {len(table['state'])} of {count}.")
        optimizer.load_state_dict(table)
