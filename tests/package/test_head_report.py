"""Tables and pictures of heads, and the command that makes them."""

import random
from pathlib import Path

import matplotlib.image
import pytest
import torch

from transformer_lm.__main__ import main
from transformer_lm.heads.ablation import LossChange
from transformer_lm.heads.planted import planted_model, planted_text, planted_tokenizer
from transformer_lm.heads.report import score_table, summary
from transformer_lm.heads.scores import Measured, measure_heads
from transformer_lm.modeling_lm import TransformerLM
from transformer_lm.training.checkpoints import save_model

N = 24
TOKENIZER = planted_tokenizer()
PLAN = [["previous", "uniform"], ["offset 3", "previous_space"]]


@pytest.fixture(scope="module")
def model() -> TransformerLM:
    return planted_model(PLAN, TOKENIZER, N)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "planted.txt"
    path.write_text(planted_text(random.Random(0), 600), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, model) -> Path:
    path = tmp_path_factory.mktemp("models") / "planted.safetensors"
    save_model(path, model, TOKENIZER)
    return path


@pytest.fixture(scope="module")
def measured(model, text) -> Measured:
    tokens = torch.tensor(TOKENIZER.encode(text.read_text(encoding="utf-8")))
    return measure_heads(model, [tokens.view(25, N)], TOKENIZER, progress=False)


def test_the_summary_names_each_head_with_its_numbers(measured):
    titles, *rows = (line.split("  ") for line in summary(measured).splitlines())
    rows = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [row[:2] for row in rows] == [
        ["0.0", "previous"],
        ["0.1", "-"],
        ["1.0", "offset 3"],
        ["1.1", "previous_space"],
    ]
    found = measured.patterns["previous_space"]
    assert rows[3][2:5] == [f"{found.score[1, 1]:.2f}", f"{found.chance:.2f}", f"{found.null[1, 1]:.2f}"]
    assert rows[0][4] == "-"  # because it is about position
    assert rows[1][2:] == [f"{measured.entropy[0, 1]:.2f}", f"{measured.distance[0, 1]:.1f}"]
    assert "loss" not in " ".join(titles)


def test_the_summary_tells_the_loss_without_each_head(measured):
    changes = {(layer, head): LossChange(2.0, layer - 0.1 * head, 0, 0) for layer in (0, 1) for head in (0, 1)}
    lines = summary(measured, changes).splitlines()
    assert lines[0].endswith("loss without it")
    assert [line.split()[-1] for line in lines[1:]] == ["+0.000", "-0.100", "+1.000", "+0.900"]


def test_the_table_has_every_pattern_and_stars_what_names_a_head(measured):
    lines = score_table(measured).splitlines()
    assert lines[0].split() == ["pattern", "chance", "0.0", "0.1", "1.0", "1.1"]
    assert len(lines) == 1 + len(measured.patterns) + 1  # and the one offset that a head has
    starred = {line.split()[0]: [cell.endswith("*") for cell in line.split()[-4:]] for line in lines[1:] if "*" in line}
    assert starred == {
        "previous": [True, False, False, False],
        "previous_space": [False, False, False, True],
        "offset": [False, False, True, False],
    }


def test_the_command_prints_both_tables_and_writes_pictures(checkpoint, text, tmp_path, capsys):
    folder = tmp_path / "new" / "pictures"
    arguments = ["heads", str(checkpoint), str(text), "--slices=20", "--ablate=zero", f"--pictures={folder}"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "1.1   previous_space" in out
    assert "vowel_to_consonant" in out
    assert "loss without it" in out
    names = ["heads.png", "scores.png", "distances_layer_0.png", "distances_layer_1.png"]
    assert out.splitlines()[-4:] == [str(folder / name) for name in names]
    for name in names:
        assert matplotlib.image.imread(folder / name).std() > 0.05


def test_a_corpus_is_read_by_its_name(checkpoint, capsys):
    """The toy grammar has characters that the planted model does not know; one sentence says so."""
    assert main(["heads", str(checkpoint), "toy"]) == 1
    assert capsys.readouterr().err.startswith("heads: text must only have characters of the vocabulary")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--length=25"], "length must be from 2 to the model's max_len=24, got 25."),
        (["--length=1"], "length must be from 2 to"),
        (["--slices=0"], "slices must be 1 or more, got 0."),
    ],
)
def test_what_cannot_be_done_is_told_in_one_sentence(checkpoint, text, arguments, words, capsys):
    assert main(["heads", str(checkpoint), str(text), *arguments]) == 1
    assert words in capsys.readouterr().err


def test_a_text_that_is_not_there_is_told(checkpoint, tmp_path, capsys):
    assert main(["heads", str(checkpoint), str(tmp_path / "none.txt")]) == 1
    assert "or a text file, got" in capsys.readouterr().err
    assert main(["heads", str(tmp_path / "none.safetensors"), "toy"]) == 1
    assert "must be a file, got none there" in capsys.readouterr().err


def test_short_slices_are_read_too(checkpoint, text, capsys):
    """Too short to repeat anything, so induction can't be measured."""
    assert main(["heads", str(checkpoint), str(text), "--length=5", "--slices=3"]) == 0
    assert "induction" not in capsys.readouterr().out
