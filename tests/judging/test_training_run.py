"""The exercise whose answer is a file: what a model earns, and what a file can do to the process that reads it."""

import json
import struct
import time
import zipfile
from dataclasses import asdict, replace

import pytest
import torch
from checkout import ROOT
from safetensors.torch import save_file

from grading.authoring.bundle import write_bundle
from transformer_lm import checks
from transformer_lm.checks.engine.failure import CheckFailed
from transformer_lm.checks.topic_04_language_model.training_run import LARGEST, TRAINING_RUN
from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.texts.corpora import load_toy
from transformer_lm.texts.tokenizers import ByteTokenizer, CharTokenizer
from transformer_lm.training.checkpoints import save_model
from transformer_lm.training.pretrained import load_trained

TEXT = "the owl sings.\nan ant sees the dogs.\n" * 20


@pytest.fixture
def path(tmp_path):
    return tmp_path / "my_model.safetensors"


def write(path, config: dict, tokenizer: dict, weights: dict | None = None) -> None:
    header = {"config": json.dumps(config), "tokenizer": json.dumps(tokenizer)}
    save_file(weights or {"nothing": torch.zeros(1)}, path, header)


def small(vocab_size: int, **settings) -> TransformerLM:
    return TransformerLM(LMConfig(vocab_size, hidden=8, num_layers=1, **settings))


@pytest.mark.parametrize(
    ("loss", "points"), [(0.0, 4), (0.49, 4), (0.491, 3), (0.52, 3), (0.6, 2), (0.9, 1), (1.3, 0), (float("nan"), 0)]
)
def test_points_fall_with_the_loss(loss, points):
    assert TRAINING_RUN.points(loss) == points


def test_an_untrained_model_is_told_its_loss_and_the_goals(path):
    corpus = load_toy(n=2000)
    save_model(path, small(corpus.tokenizer.vocab_size, tied=False, init="zero_output"), corpus.tokenizer)
    with pytest.raises(CheckFailed, match=r"3\.219 nats per character, for 0 points") as failed:
        checks.training_run(path)
    assert "0.49 for 4, 0.52 for 3" in failed.value.expected


def test_a_model_of_bytes_will_do(path):
    save_model(path, small(256, tied=False, init="zero_output"), ByteTokenizer())
    assert TRAINING_RUN.loss(path, TEXT) == pytest.approx(5.545, abs=1e-3)  # ln 256


def test_a_tokenizer_that_takes_all_characters_for_one_earns_nothing(path):
    tokenizer = CharTokenizer("x", unknown=True)
    save_model(path, small(tokenizer.vocab_size), tokenizer)
    with pytest.raises(CheckFailed, match="takes different characters for one"):
        TRAINING_RUN.loss(path, TEXT)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_len": 10**9, "positions": "sinusoidal"},
        {"max_len": 10**9, "positions": "rotary"},
        {"num_layers": 10**9},
        {"hidden": 10**6, "num_heads": 1},
        {"mlp_hidden": 10**9},
        {"hidden": 128, "num_heads": 128, "positions": "relative"},
    ],
)
def test_a_header_that_asks_for_a_giant_is_refused_before_it_is_built(path, settings):
    tokenizer = load_toy(n=2000).tokenizer
    write(path, asdict(LMConfig(tokenizer.vocab_size)) | settings, tokenizer.as_table())
    started = time.monotonic()
    with pytest.raises(CheckFailed, match="at most"):
        TRAINING_RUN.loss(path, TEXT)
    assert time.monotonic() - started < 5  # a giant would take hours, or all memory


def test_a_long_header_is_read_in_no_time(path):
    write(path, {"vocab_size": 300}, {"kind": "characters", "characters": "ab" * 500_000, "unknown": False})
    started = time.monotonic()
    with pytest.raises(CheckFailed, match="characters must be distinct"):
        TRAINING_RUN.loss(path, TEXT)
    assert time.monotonic() - started < 5  # counting each character again would take hours


def test_a_header_of_brackets_is_refused(path):
    header = {"config": "[" * 100_000, "tokenizer": "{}"}
    save_file({"nothing": torch.zeros(1)}, path, header)
    with pytest.raises(CheckFailed, match="must hold a model of this course"):
        TRAINING_RUN.loss(path, TEXT)


def test_a_file_that_claims_a_long_header_is_refused(path):
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(CheckFailed, match="cut short or of another kind"):
        TRAINING_RUN.loss(path, TEXT)


def test_a_file_that_is_too_large_is_not_read(path):
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(CheckFailed, match="40,000,001 bytes"):
        TRAINING_RUN.loss(path, TEXT)


def test_errors_stay_short(path):
    tokenizer = load_toy(n=2000).tokenizer
    write(path, {"vocab_size": 25, "x" * 100_000: 1}, tokenizer.as_table())
    with pytest.raises(CheckFailed) as failed:
        TRAINING_RUN.loss(path, TEXT)
    assert len(str(failed.value)) < 1000


def test_a_link_is_not_followed(path, tmp_path):
    corpus = load_toy(n=2000)
    save_model(tmp_path / "other.safetensors", small(corpus.tokenizer.vocab_size), corpus.tokenizer)
    path.symlink_to(tmp_path / "other.safetensors")
    with pytest.raises(CheckFailed, match="no such file"):
        TRAINING_RUN.loss(path, TEXT)


def as_it_is(model: TransformerLM, tokenizer: CharTokenizer) -> tuple[TransformerLM, CharTokenizer]:
    return model, tokenizer


def with_longer_windows(model: TransformerLM, tokenizer: CharTokenizer) -> tuple[TransformerLM, CharTokenizer]:
    """Return the model with positions for 512 characters, which repeat those that it has."""
    stretched = TransformerLM(replace(model.config, max_len=512))
    wanted = stretched.state_dict()
    for name, table in model.state_dict().items():
        if table.shape == wanted[name].shape:
            wanted[name] = table
        else:
            wanted[name][tuple(map(slice, table.shape))] = table
    stretched.load_state_dict(wanted)
    return stretched, tokenizer


def with_another_order(model: TransformerLM, tokenizer: CharTokenizer) -> tuple[TransformerLM, CharTokenizer]:
    """Return the model with its characters in another order."""
    with torch.no_grad():
        for table in {id(each): each for each in (model.embed.tokens.weight, model.unembed.weight)}.values():
            table.copy_(table.flip(0))
    return model, CharTokenizer(tokenizer.characters[::-1])


def shifted(model: TransformerLM, tokenizer: CharTokenizer) -> tuple[TransformerLM, CharTokenizer]:
    with torch.no_grad():
        for table in model.parameters():
            table += 0.002 * torch.randn(table.shape)
    return model, tokenizer


def rounded(model: TransformerLM, tokenizer: CharTokenizer) -> tuple[TransformerLM, CharTokenizer]:
    return model.bfloat16().float(), tokenizer


@pytest.mark.parametrize("change", [as_it_is, with_longer_windows, with_another_order, rounded, shifted])
def test_a_model_that_comes_with_the_course_earns_nothing(path, change):
    save_model(path, *change(*load_trained("toy")))
    with pytest.raises(CheckFailed, match="weights that come with the course"):
        TRAINING_RUN.loss(path, TEXT)


def test_no_trained_model_is_in_the_zip_before_the_topic_that_needs_it(tmp_path):
    for through, models in (("04_language_model", 0), ("05_attention_heatmaps", 4)):
        write_bundle(ROOT, through, tmp_path / "course.zip")
        names = zipfile.ZipFile(tmp_path / "course.zip").namelist()
        assert sum("trained" in name and name.endswith(".safetensors") for name in names) == models
