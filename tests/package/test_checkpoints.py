"""Models and runs on disk: what comes back is what was written, and what is damaged is refused by name."""

import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.texts.tokenizers import ByteTokenizer, CharTokenizer
from transformer_lm.training import checkpoints
from transformer_lm.training.checkpoints import (
    has_checkpoints,
    load_checkpoint,
    load_model,
    newest_checkpoint,
    save_checkpoint,
    save_model,
)

TOKENIZER = CharTokenizer('ab\n"é🙂')
CONFIG = LMConfig(6, 5, hidden=12, num_layers=2, num_heads=3, positions="relative", smear=True)


@pytest.fixture
def model() -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(CONFIG)


@pytest.fixture
def path(tmp_path, model) -> Path:
    """Return a file that contains the model."""
    save_model(tmp_path / "model.safetensors", model, TOKENIZER)
    return tmp_path / "model.safetensors"


def save_step(folder: Path, step: int, model: TransformerLM) -> Path:
    tensors = {"0.1.exp_avg": torch.arange(3.0)}
    return save_checkpoint(folder, step, model, TOKENIZER, tensors, {"cpu": torch.get_rng_state()}, {"loss": [0.1]})


def rewrite(path: Path, **entries: str | None) -> None:
    """Write the file again with other entries in its header; None leaves one out."""
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        header = file.metadata() | entries
    save_file(tensors, path, metadata={name: entry for name, entry in header.items() if entry is not None})


def assert_refused(path: Path, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        load_model(path)
    assert str(path) in str(refusal.value)


# ------------------------------------------------------------------ what comes back is what was written


@pytest.mark.parametrize("changes", [{}, {"tied": False, "output_bias": True}, {"positions": "rotary", "bias": False}])
def test_a_model_comes_back_with_its_tokenizer(tmp_path, changes):
    model = TransformerLM(replace(CONFIG, **changes))
    save_model(tmp_path / "m.safetensors", model, TOKENIZER)
    again, tokenizer = load_model(tmp_path / "m.safetensors")
    assert again.config == model.config
    assert tokenizer == TOKENIZER
    assert not again.training
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    tokens = torch.randint(6, (2, 5))
    assert torch.equal(again(tokens), model.eval()(tokens))


def test_tied_weights_are_stored_once_and_stay_tied(path):
    assert "unembed.weight" not in load_file(path)
    model, _ = load_model(path)
    assert model.unembed.weight is model.embed.tokens.weight


def test_bytes_come_back_as_bytes(tmp_path):
    model = TransformerLM(replace(CONFIG, vocab_size=256))
    save_model(tmp_path / "m.safetensors", model, ByteTokenizer())
    assert load_model(tmp_path / "m.safetensors")[1] == ByteTokenizer()


def test_a_file_that_is_there_is_replaced(path, model):
    with torch.no_grad():
        model.smear += 1
    save_model(path, model, TOKENIZER)
    assert torch.equal(load_model(path)[0].smear, model.smear)


def test_a_checkpoint_comes_back(tmp_path, model):
    state = torch.get_rng_state()
    checkpoint = load_checkpoint(save_step(tmp_path / "new" / "run", 7, model))
    assert checkpoint.step == 7
    assert checkpoint.table == {"loss": [0.1]}
    assert torch.equal(checkpoint.optimizer["0.1.exp_avg"], torch.arange(3.0))
    assert torch.equal(checkpoint.random["cpu"], state)
    assert all(torch.equal(checkpoint.weights[name], parameter) for name, parameter in model.named_parameters())


def test_the_two_newest_checkpoints_are_kept(tmp_path, model):
    assert not has_checkpoints(tmp_path)
    for step in (1, 2, 9, 10):
        save_step(tmp_path, step, model)
    assert sorted(os.listdir(tmp_path)) == ["step-00000009", "step-00000010"]
    assert newest_checkpoint(tmp_path).name == "step-00000010"
    assert has_checkpoints(tmp_path)


def test_a_step_that_is_there_is_replaced(tmp_path, model):
    save_step(tmp_path, 3, model)
    with torch.no_grad():
        model.smear += 1
    save_step(tmp_path, 3, model)
    assert torch.equal(load_checkpoint(tmp_path / "step-00000003").weights["smear"], model.smear)


def test_what_a_killed_run_left_unfinished_is_cleared_away(tmp_path, model):
    (tmp_path / "unfinished-abc" / "step-00000001").mkdir(parents=True)
    save_step(tmp_path, 2, model)
    assert os.listdir(tmp_path) == ["step-00000002"]


def test_other_names_are_no_checkpoints(tmp_path):
    for name in ("step-", "step-abc", "step-1x", "unfinished-x"):
        (tmp_path / name).mkdir()
    assert not has_checkpoints(tmp_path)


def test_of_a_folder_the_model_is_taken_or_else_the_newest_checkpoint(tmp_path, model):
    save_step(tmp_path, 1, model)
    with torch.no_grad():
        model.smear += 1
    save_step(tmp_path, 2, model)
    assert torch.equal(load_model(tmp_path)[0].smear, model.smear)
    with torch.no_grad():
        model.smear += 1
    save_model(tmp_path / "model.safetensors", model, TOKENIZER)
    assert torch.equal(load_model(tmp_path)[0].smear, model.smear)


# ------------------------------------------------------------------ a file is complete or as it was before


def test_a_model_that_can_not_be_written_leaves_the_old_file_and_no_other(path, model, monkeypatch):
    before = path.read_bytes()
    with torch.no_grad():
        model.smear += 1
    for module, name in ((os, "replace"), (checkpoints, "save_file")):
        with monkeypatch.context() as broken:
            broken.setattr(module, name, disk_full)
            with pytest.raises(OSError, match="disk full"):
                save_model(path, model, TOKENIZER)
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]


def test_a_checkpoint_that_can_not_be_written_leaves_the_old_ones_and_nothing_else(tmp_path, model, monkeypatch):
    save_step(tmp_path, 1, model)
    for module, name in ((os, "rename"), (checkpoints, "save_file"), (checkpoints, "flush")):
        with monkeypatch.context() as broken:
            broken.setattr(module, name, disk_full)
            with pytest.raises(OSError, match="disk full"):
                save_step(tmp_path, 2, model)
        assert os.listdir(tmp_path) == ["step-00000001"]
    assert load_checkpoint(newest_checkpoint(tmp_path)).step == 1


def disk_full(*_, **__):
    raise OSError("disk full")


# ------------------------------------------------------------------ refuses bad files with the right words


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.99])
def test_a_model_that_was_cut_short_is_refused(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert_refused(path, "must be a complete safetensors file, got one that is cut short or of another kind: .*[^.].$")


def test_random_bytes_and_texts_are_refused(path):
    for content in (os.urandom(5000), b"\x00" * 100, b"To be, or not to be", b"PK\x03\x04" * 50):
        path.write_bytes(content)
        assert_refused(path, "must be a complete safetensors file")


def test_a_file_of_other_tensors_is_refused(path):
    save_file({"x": torch.ones(2)}, path)
    assert_refused(path, "must hold a model of this course: its header has no 'config'")


@pytest.mark.parametrize("entry", ["config", "tokenizer"])
def test_a_header_without_config_or_tokenizer_is_refused(path, entry):
    rewrite(path, **{entry: None})
    assert_refused(path, f"must hold a model of this course: its header has no '{entry}'")


@pytest.mark.parametrize(
    ("entry", "table", "words"),
    [
        ("config", "{", "Expecting property name"),
        ("config", "[1]", "vocab_size"),
        ("config", json.dumps(asdict(CONFIG) | {"num_heads": 5}), "num_heads must divide hidden"),
        ("config", json.dumps(asdict(CONFIG) | {"heads": 5}), "settings among bias, .*, got 'heads'"),
        ("config", json.dumps({"hidden": 12}), "got no vocab_size"),
        ("model", "TransformerEncoderDecoder", "got 'bias'"),
        ("model", "Perceptron", "model must be one of TransformerLM, .*, got 'Perceptron'"),
        ("config", json.dumps(asdict(CONFIG) | {"dropout": "a"}), "dropout must be"),
        ("config", json.dumps(asdict(CONFIG) | {"vocab_size": 7}), "config and tokenizer must agree, got 7 and 6"),
        ("tokenizer", json.dumps({"kind": "bytes"}), "config and tokenizer must agree, got 6 and 256"),
        ("tokenizer", json.dumps({"kind": "syllables"}), "a tokenizer must be a table with a kind"),
        ("tokenizer", "null", "a tokenizer must be a table with a kind"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(path, entry, table, words):
    rewrite(path, **{entry: table})
    assert_refused(path, f"must hold a model of this course: .*{words}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mlp_hidden": 7}, r"shape \(12, 7\) as blocks.0.mlp.down.weight, got shape \(12, 48\)"),
        ({"positions": "none"}, r"nothing as blocks.0.attention.distances, got shape \(3, 5\)"),
        ({"tied": False}, r"shape \(6, 12\) as unembed.weight, got nothing"),
        ({"num_layers": 1}, r"nothing as blocks.1.attention.distances, got shape"),
    ],
)
def test_weights_of_another_model_are_refused(path, changes, words):
    rewrite(path, config=json.dumps(asdict(replace(CONFIG, **changes))))
    assert_refused(path, f"must fit the model, which has {words}.")


def test_a_missing_file_and_a_folder_without_a_model_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path / 'x'} must be a file, got none there.")):
        load_model(tmp_path / "x")
    with pytest.raises(FileNotFoundError, match="must hold a model or the checkpoints of a run, got neither"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "random.safetensors", "run.json"])
def test_a_checkpoint_with_a_damaged_or_missing_file_is_refused(tmp_path, model, name):
    file = save_step(tmp_path, 1, model) / name
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"step-00000001.* must (be a complete safetensors|hold a complete check)"):
        load_checkpoint(file.parent)
    file.unlink()
    with pytest.raises((ValueError, OSError), match=r"step-00000001.* must (be a file|hold a complete check)"):
        load_checkpoint(file.parent)


def test_whoever_collects_a_model_can_read_it(tmp_path):
    model = TransformerLM(LMConfig(3, hidden=4, num_layers=1))
    save_model(tmp_path / "model.safetensors", model, CharTokenizer("abc"))
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o644
