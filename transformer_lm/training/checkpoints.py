"""Models and training runs on disk, as safetensors and JSON; nothing is ever unpickled.

A model is one file, with its config and tokenizer in the file's own header. A run is a folder with a folder for each of
its last checkpoints, `step-00000100`, which gets its name only once it is complete. So even if a run is killed, every
folder with such a name is complete.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from transformer_lm.files import UNFINISHED, flush, replacing
from transformer_lm.modeling_encoder_decoder import EncoderDecoderConfig, TransformerEncoderDecoder
from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.modeling_recurrent import RecurrentConfig, RecurrentEncoderDecoder
from transformer_lm.texts.tokenizers import Tokenizer, tokenizer_from_table
from transformer_lm.texts.word_tokenizers import PairTokenizer

Model = TransformerLM | TransformerEncoderDecoder | RecurrentEncoderDecoder
Config = LMConfig | EncoderDecoderConfig | RecurrentConfig
CONFIGS = {
    TransformerLM: LMConfig,
    TransformerEncoderDecoder: EncoderDecoderConfig,
    RecurrentEncoderDecoder: RecurrentConfig,
}

Found = TypeVar("Found")

KEPT = 2  # checkpoints of a run
PREFIX = "step-"
READABLE = 0o644  # for the collector of submissions; safetensors makes its files private to their owner


def save_model(path: str | os.PathLike, model: Model, tokenizer: Tokenizer | PairTokenizer) -> None:
    """Write a model with its tokenizer to a file, which is either complete or unchanged."""
    with replacing(path) as written:
        _write_model(written, model, tokenizer)


def load_model(path: str | os.PathLike) -> tuple[Model, Tokenizer | PairTokenizer]:
    """Return the model, in eval mode, and the tokenizer of a file or of a run's folder.

    From a folder, it is the finished model, or else the newest checkpoint.

    Raises FileNotFoundError if there is none, ValueError, which names the file, if it is damaged or not a model.
    """
    path = Path(path)
    if path.is_dir():
        finished = path / "model.safetensors"
        path = finished if finished.exists() else newest_checkpoint(path) / "model.safetensors"
    config, tokenizer = read_header(path)
    model = next(kind for kind, settings in CONFIGS.items() if isinstance(config, settings))(config)
    load_weights(model, _read(path), path)
    return model.eval(), tokenizer


def read_header(path: str | os.PathLike) -> tuple[Config, Tokenizer | PairTokenizer]:
    """Return the config and the tokenizer of a model's file, without its weights.

    Raises FileNotFoundError if there is none, ValueError, which names the file, if it is damaged or not a model.
    """
    path = Path(path)
    header = _opened(path, lambda file: file.metadata() or {})
    try:
        config = _config(header.get("model", TransformerLM.__name__), json.loads(header["config"]))
        tokenizer = tokenizer_from_table(json.loads(header["tokenizer"]))
        ours, theirs = _sizes(config), _sizes(tokenizer)
        if ours != theirs:
            raise ValueError(f"config and tokenizer must agree, got {ours} and {theirs} tokens.")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        missing = f"its header has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} must hold a model of this course: {missing}") from None
    return config, tokenizer


def _config(name: str, table: dict) -> Config:
    """Return the config of a model by the name of its class. Raises ValueError for another class or setting."""
    settings = {kind.__name__: config for kind, config in CONFIGS.items()}
    if name not in settings:
        raise ValueError(f"model must be one of {', '.join(settings)}, got {name!r}.")
    known = {field.name: field.default is MISSING for field in fields(settings[name])}
    table = table if isinstance(table, dict) else {}
    unknown, missing = sorted(table.keys() - known), [field for field in known if known[field] and field not in table]
    if unknown or missing:
        problem = f"{unknown[0]!r}" if unknown else f"no {missing[0]}"
        raise ValueError(f"a config must have settings among {', '.join(sorted(known))}, got {problem}.")
    return settings[name](**table)


def _sizes(part: Config | Tokenizer | PairTokenizer) -> str:
    """Describe the size of a vocabulary, or of two, in words."""
    if isinstance(part, PairTokenizer):
        return f"{part.source.vocab_size} and {part.target.vocab_size}"
    if isinstance(part, EncoderDecoderConfig | RecurrentConfig):
        return f"{part.source_vocab_size} and {part.target_vocab_size}"
    return str(part.vocab_size)


def load_weights(model: Model, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load the weights of a file into a model. Raises ValueError unless names and shapes are the model's."""
    parameters = dict(model.named_parameters())
    for name in sorted(parameters.keys() | tensors.keys()):
        expected, found = (tuple(each[name].shape) if name in each else None for each in (parameters, tensors))
        if expected != found:
            ours, theirs = ("nothing" if shape is None else f"shape {shape}" for shape in (expected, found))
            raise ValueError(f"{path} must fit the model, which has {ours} as {name}, got {theirs}.")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


@dataclass(frozen=True)
class Checkpoint:
    """A run at some step: all that is needed to resume it exactly as if it had never stopped."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    table: dict
    path: Path


def save_checkpoint(
    folder: Path,
    step: int,
    model: Model,
    tokenizer: Tokenizer | PairTokenizer,
    optimizer: Mapping[str, Tensor],
    random: Mapping[str, Tensor],
    table: dict,
) -> Path:
    """Write a checkpoint of a run and delete all but the last two; return its path."""
    final = folder / f"{PREFIX}{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder) as scratch:
        written = Path(scratch) / final.name
        written.mkdir()
        _write_model(written / "model.safetensors", model, tokenizer)
        _write(written / "optimizer.safetensors", dict(optimizer), {})
        _write(written / "random.safetensors", dict(random), {})
        (written / "run.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
        flush(written / "run.json")
        shutil.rmtree(final, ignore_errors=True)  # of an earlier run
        os.rename(written, final)
    flush(folder)
    for old in (*_checkpoints(folder)[:-KEPT], *folder.glob(f"{UNFINISHED}*")):  # the latter from killed runs
        shutil.rmtree(old, ignore_errors=True)
    return final


def load_checkpoint(path: Path) -> Checkpoint:
    """Return a checkpoint. Raises ValueError, which names the file, if one is damaged."""
    try:
        table = json.loads((path / "run.json").read_text(encoding="utf-8"))
        step = int(path.name.removeprefix(PREFIX))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} must hold a complete checkpoint: {error}") from None
    names = ("model", "optimizer", "random")
    weights, optimizer, random = (_read(path / f"{name}.safetensors") for name in names)
    return Checkpoint(step, weights, optimizer, random, table, path)


def newest_checkpoint(folder: str | os.PathLike) -> Path:
    """Return the newest checkpoint in a run's folder. Raises FileNotFoundError if there is none."""
    checkpoints = _checkpoints(Path(folder))
    if not checkpoints:
        raise FileNotFoundError(f"{folder} must hold a model or the checkpoints of a run, got neither.")
    return checkpoints[-1]


def has_checkpoints(folder: str | os.PathLike) -> bool:
    """Return whether a folder holds checkpoints."""
    return bool(_checkpoints(Path(folder)))


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdecimal())


def _write_model(path: Path, model: Model, tokenizer: Tokenizer | PairTokenizer) -> None:
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    tables = {"config": asdict(model.config), "tokenizer": tokenizer.as_table()}
    header = {name: json.dumps(table) for name, table in tables.items()} | {"model": type(model).__name__}
    _write(path, weights, header)


def _write(path: Path, tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path, metadata=header)
    path.chmod(READABLE)
    flush(path)


def _read(path: Path) -> dict[str, Tensor]:
    return _opened(path, lambda file: {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def _opened(path: Path, read: Callable[[Any], Found]) -> Found:
    """Return the result of reading a safetensors file. Raises ValueError if it cannot be read."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file, got none there.")
    try:
        with safe_open(path, framework="pt") as file:
            return read(file)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ValueError(
            f"{path} must be a complete safetensors file, got one that is cut short or of another kind: {error}."
        ) from None
