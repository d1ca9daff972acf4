"""Fetch corpora, train a language model, sample from it, analyse its heads, and check a notebook before you submit it.

python -m transformer_lm data|train|sample|heads|check
"""

import argparse
import io
import os
import shlex
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from transformer_lm.checks.engine.failure import CHECKING
from transformer_lm.course.progress import progress
from transformer_lm.device import best_device
from transformer_lm.hand_in import as_json, report_of
from transformer_lm.heads.ablation import WAYS, ablate_heads
from transformer_lm.heads.recording import record_attention
from transformer_lm.heads.report import score_table, summary
from transformer_lm.heads.scores import measure_heads
from transformer_lm.lm import loss_per_token, random_slices
from transformer_lm.modeling_lm import INITS, MLPS, POSITIONS, LMConfig, TransformerLM
from transformer_lm.sampling import sampled_text
from transformer_lm.texts import downloads
from transformer_lm.texts.corpora import LOADERS, load_corpus
from transformer_lm.texts.tokenizers import Tokenizer
from transformer_lm.training.callbacks import PrintedReport, TensorBoard, validation_prompt
from transformer_lm.training.checkpoints import has_checkpoints, load_checkpoint, load_model, newest_checkpoint
from transformer_lm.training.loop import OPTIMIZERS, SCHEDULES, Recipe, Report, train
from transformer_lm.training.presets import PRESETS, preset

# The settings of a preset that `train` can change, each with a type or its choices and a line of help.
RECIPE = {
    "steps": (int, "number of batches to train on"),
    "batch_size": (int, "slices of text in a batch"),
    "accumulation": (int, "portions in which a batch is processed, if memory is short"),
    "optimizer": (
        OPTIMIZERS,
        "AdamW for all parameters (may need another --learning-rate), or Muon for the blocks' matrices",
    ),
    "learning_rate": (float, "highest learning rate of AdamW"),
    "schedule": (SCHEDULES, "how the learning rate changes after the warm-up"),
    "warmup": (int, "steps over which the learning rate rises"),
    "weight_decay": (float, "weight decay of the matrices that AdamW trains"),
    "seed": (int, "random seed of the initial weights, the batches and dropout"),
}
MODEL = {
    "max_len": (int, "tokens that the model can attend to"),
    "hidden": (int, "width of the residual stream"),
    "num_layers": (int, "number of blocks"),
    "num_heads": (int, "attention heads in a block, a divisor of hidden"),
    "mlp_hidden": (int, "width of the feed-forward network (usually 4 * hidden)"),
    "dropout": (float, "dropout rate of embeddings, attention weights, attention and MLP"),
    "positions": (POSITIONS, "positional encoding"),
    "mlp": (MLPS, "non-linearity of the feed-forward network"),
    "init": (INITS, "how the weights are initialised"),
}

ERRORS = (ValueError, OSError, ImportError, FloatingPointError)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; an error is reported in one sentence, not as a traceback."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options) or 0
    except ERRORS as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{options.command}: stopped.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m transformer_lm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    fetching = commands.add_parser("data", help="fetch corpora, which are checked and kept in the data folder")
    fetching.set_defaults(run=lambda options: downloads.main(options.corpora))
    read = ", ".join(downloads.READ_BY_LESSONS)
    fetching.add_argument(
        "corpora",
        nargs="*",
        metavar="CORPUS",
        help=f"{', '.join(downloads.CORPORA)} (default: {read}, for the lessons)",
    )

    training = commands.add_parser("train", help="train a model, or resume its training")
    training.set_defaults(run=run_train)
    training.add_argument(
        "--data", default="shakespeare", help=f"{', '.join(LOADERS)}, or your own text file or folder"
    )
    training.add_argument(
        "--preset",
        default="default",
        choices=PRESETS,
        help="sizes and recipe (default: %(default)s); with --resume, only part of the folder's name",
    )
    training.add_argument("--out", type=Path, help="the run's folder (default: runs/DATA-PRESET)")
    training.add_argument(
        "--resume",
        action="store_true",
        help="resume from the newest checkpoint in that folder, with the settings of the run: options for the recipe "
        "change it from there on, but optimizer and model cannot change",
    )
    training.add_argument("--device", help="cpu, cuda or mps (default: the fastest that computes correctly)")
    for name, default, what in (
        ("save-every", 100, "between two checkpoints"),
        ("evaluate-every", None, "between two measurements of the validation loss; the last is always at the end"),
        ("loss-every", 10, "between two losses that are printed"),
        ("sample-every", 100, "between two samples that are printed"),
    ):
        often = "" if default is None else " (default: %(default)s)"
        training.add_argument(f"--{name}", type=int, default=default, metavar="STEPS", help=what + often)
    training.add_argument("--tensorboard", action="store_true", help="write files for TensorBoard into the folder")
    training.add_argument("--quiet", action="store_true", help="no losses and samples, only progress bar and result")
    _add_settings(training.add_argument_group("recipe", "The defaults are those of the preset."), RECIPE)
    model = training.add_argument_group("model", "The defaults are those of the preset.")
    _add_settings(model, MODEL)
    model.add_argument(
        "--no-residual", dest="residual", action="store_false", default=None, help="leave out all residual connections"
    )

    sampling = commands.add_parser("sample", help="generate text with a trained model")
    sampling.set_defaults(run=run_sample)
    sampling.add_argument("model", type=Path, help="a model.safetensors, or the folder of a run")
    beginning = sampling.add_mutually_exclusive_group()
    beginning.add_argument("--prompt", default="\n", help="what to continue (default: a line break)")
    beginning.add_argument("--data", help="continue 16 tokens of this corpus's validation text instead")
    sampling.add_argument("--num-tokens", type=int, default=500)
    sampling.add_argument("--num-samples", type=int, default=1)
    sampling.add_argument("--temperature", type=float, default=1.0, help="0 always selects the most likely token")
    sampling.add_argument("--top-k", type=int, help="draw only among the K most likely tokens")
    sampling.add_argument(
        "--top-p", type=float, help="draw only among the most likely tokens, up to this probability together"
    )
    sampling.add_argument("--seed", type=int, help="the same seed gives the same text")
    sampling.add_argument("--device", help="cpu, cuda or mps")

    heads = commands.add_parser("heads", help="measure what each head of a trained model does")
    heads.set_defaults(run=run_heads)
    heads.add_argument("model", type=Path, help="a model.safetensors, or the folder of a run")
    heads.add_argument("text", help=f"validation text of {', '.join(LOADERS)}, or a text file")
    heads.add_argument(
        "--slices", type=int, default=64, help="number of slices, from random positions (default: %(default)s)"
    )
    heads.add_argument("--length", type=int, help="tokens in a slice (default: the context length of the model)")
    heads.add_argument(
        "--ablate", choices=WAYS, help="also measure the loss with each head's output set to 0 or to its mean"
    )
    heads.add_argument("--pictures", type=Path, metavar="FOLDER", help="write pictures to this folder")
    heads.add_argument("--seed", type=int, default=0, help="the same seed gives the same slices")
    heads.add_argument("--device", help="cpu, cuda or mps")

    checking = commands.add_parser("check", help="see what a notebook would get, and whether it will be accepted")
    checking.set_defaults(run=run_check)
    checking.add_argument("notebook", type=Path, metavar="NOTEBOOK", help="an assignment that you have worked on")
    checking.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def _add_settings(group: argparse._ArgumentGroup, settings: dict[str, tuple]) -> None:
    """Add an option for each setting, from its type or choices and its help text."""
    for name, (kind, what) in settings.items():
        allowed = {"type": kind} if isinstance(kind, type) else {"choices": kind}
        group.add_argument(f"--{name.replace('_', '-')}", help=what, **allowed)


def run_train(options: argparse.Namespace) -> None:
    """Train as the options say; under torchrun, together with the other processes."""
    together = int(os.environ.get("WORLD_SIZE", "1")) > 1
    device = _own_device(options.device) if together else best_device(options.device)
    if together:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        _train(options, device, rank=dist.get_rank() if together else 0)
    finally:
        if together:
            dist.destroy_process_group()


def _own_device(wanted: str | None) -> torch.device:
    """Return the device of this process: the CPU, or the accelerator with its number on this machine."""
    device = best_device(wanted)
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if device.type == "cuda" else torch.device("cpu")


def _train(options: argparse.Namespace, device: torch.device, rank: int) -> None:
    corpus = load_corpus(options.data)
    folder = options.out or Path("runs") / f"{Path(options.data).resolve().stem}-{options.preset}"
    if options.resume and has_checkpoints(folder):
        recipe, config = _resumed(options, folder)
    else:
        chosen = preset(options.preset)
        recipe = chosen.make_recipe(**_given(options, *RECIPE))
        config = chosen.make_config(corpus.tokenizer.vocab_size, **_given(options, *MODEL, "residual"))
    torch.manual_seed(recipe.seed)
    model = TransformerLM(config).to(device)
    reports: list[Report] = [] if options.quiet else [PrintedReport(corpus, options.loss_every, options.sample_every)]
    if options.tensorboard and rank == 0:
        reports.append(TensorBoard(folder / "tensorboard"))
    if rank == 0:
        sizes = f"{model.num_parameters:,} parameters, {len(corpus.train):,} tokens to train on"
        print(f"{sizes}, {recipe.steps} steps on {device}")
    history = train(
        model,
        corpus,
        recipe,
        folder=folder,
        resume=options.resume,
        save_every=options.save_every,
        evaluate_every=options.evaluate_every,
        reports=reports,
    )
    if rank == 0:
        test = (
            loss_per_token(model, corpus.test, model.config.max_len)
            if len(corpus.test) > model.config.max_len
            else None
        )
        print(f"Loss in nats per token: {history.validation[-1][1]:.4f} on validation", end="")
        print(f", {test:.4f} on test" if test is not None else "", end="")
        print(f"; {history.seconds:.0f} seconds of training.")
        print(f"python -m transformer_lm sample {shlex.quote(str(folder))}")


def _resumed(options: argparse.Namespace, folder: Path) -> tuple[Recipe, LMConfig]:
    """Return the recipe and the config of the run in a folder; options that were given override the recipe.

    Raises ValueError for options that cannot change when a run is resumed, or if the saved settings are not those of a
    run.
    """
    checkpoint = load_checkpoint(newest_checkpoint(folder))
    try:
        recipe, config = (dict(checkpoint.table[name]) for name in ("recipe", "config"))
        for name, given in _given(options, "optimizer", *MODEL, "residual").items():
            ours = (recipe | config)[name]
            if given != ours:
                raise ValueError(f"{name} must be {ours}, as in the run in {folder}, got {given}.")
        changed = recipe | {"betas": tuple(recipe["betas"])} | _given(options, *RECIPE)
        return Recipe(**changed), LMConfig(**config)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{checkpoint.path} must hold the settings of a run of this version: {error}.") from None


def run_sample(options: argparse.Namespace) -> None:
    """Print samples, character by character as they are drawn."""
    model, tokenizer = _language_model(options.model)
    model = model.to(best_device(options.device))
    corpus = None if options.data is None else load_corpus(options.data)
    for number in range(options.num_samples):
        seed, prompt = None if options.seed is None else options.seed + number, options.prompt
        if corpus is not None:
            prompt = corpus.tokenizer.decode(validation_prompt(corpus, seed or number)[0])
        pieces = sampled_text(
            model,
            tokenizer,
            prompt,
            options.num_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=seed,
        )
        print(prompt, end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print("\n---" if number + 1 < options.num_samples else "")


def run_heads(options: argparse.Namespace) -> None:
    """Print what each head does on slices of a text, and save pictures of the first slice if asked to."""
    model, tokenizer = _language_model(options.model)
    model = model.to(best_device(options.device))
    length = options.length or model.config.max_len
    if not 2 <= length <= model.config.max_len:
        raise ValueError(f"length must be from 2 to the model's max_len={model.config.max_len}, got {length}.")
    if options.slices < 1:
        raise ValueError(f"slices must be 1 or more, got {options.slices}.")
    tokens = torch.tensor(tokenizer.encode(_text_of(options.text)))
    slices = random_slices(tokens, options.slices, length + 1, torch.Generator().manual_seed(options.seed))
    batches = slices.split(16)
    measured = measure_heads(model, [batch[:, :-1] for batch in batches], tokenizer)
    changes = None if options.ablate is None else ablate_heads(model, batches, how=options.ablate)
    print(summary(measured, changes), score_table(measured), sep="\n\n")
    if options.pictures is not None:
        from transformer_lm.plots.heads import save_pictures  # only needed for drawing

        first = slices[:1, :-1]
        characters = [tokenizer.decode([token]) for token in first[0].tolist()]
        for path in save_pictures(options.pictures, measured, record_attention(model, first), characters):
            print(path)


def run_check(options: argparse.Namespace) -> int:
    """Print the points a notebook would get and the progress in the course; return 0 if nothing is left to do."""
    if os.environ.get(CHECKING):  # called from a cell of the notebook that is being checked
        return 0
    report = report_of(options.notebook)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(encoding="utf-8")  # otherwise Windows cannot write ✓ to a file or pipe
    print(as_json(report) if options.json else f"{report}\n\n{progress()}")
    return 0 if report.is_complete else 1


def _language_model(path: Path) -> tuple[TransformerLM, Tokenizer]:
    """Return a model and its tokenizer. Raises ValueError for a translation model."""
    model, tokenizer = load_model(path)
    if not isinstance(model, TransformerLM):
        raise ValueError(f"model must be a language model, got {type(model).__name__} in {path}.")
    assert isinstance(tokenizer, Tokenizer)
    return model, tokenizer


def _text_of(name_or_path: str) -> str:
    """Return the validation text of a corpus, or the whole text of a file."""
    if name_or_path in LOADERS:
        corpus = load_corpus(name_or_path)
        return corpus.tokenizer.decode(corpus.validation)
    path = Path(name_or_path)
    if not path.is_file():
        raise FileNotFoundError(f"text must be one of {', '.join(LOADERS)}, or a text file, got {name_or_path!r}.")
    return path.read_text(encoding="utf-8")


def _given(options: argparse.Namespace, *names: str) -> dict:
    """Return the options that were given."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


if __name__ == "__main__":
    sys.exit(main())
