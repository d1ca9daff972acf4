"""The command line: train, sample, resume, two processes for one run, and errors of one sentence."""

import contextlib
import hashlib
import multiprocessing
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from transformer_lm.__main__ import main
from transformer_lm.modeling_lm import INITS, MLPS, POSITIONS
from transformer_lm.sampling import sampled_text
from transformer_lm.texts import downloads
from transformer_lm.texts.downloads import File
from transformer_lm.training.checkpoints import load_checkpoint, load_model, newest_checkpoint
from transformer_lm.training.loop import OPTIMIZERS, SCHEDULES
from transformer_lm.training.pretrained import FOLDER

SMALL = ["--max-len=8", "--hidden=12", "--num-layers=1", "--num-heads=3", "--batch-size=4", "--device=cpu"]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "rounds and rounds.txt"
    path.write_text("abc def ghi\n" * 40)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory, text) -> Path:
    """Return the folder of a run of six steps, trained in this process."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    assert main(["train", f"--data={text}", *SMALL, "--steps=6", f"--out={folder}", "--save-every=3", "--quiet"]) == 0
    return folder


def command(*arguments: object, folder: Path, module: str = "transformer_lm") -> subprocess.CompletedProcess:
    """Return what `python -m module` printed, called in a folder."""
    whole = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(whole, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)


def losses(folder: Path) -> list[float]:
    return load_checkpoint(newest_checkpoint(folder)).table["history"]["loss"]


def failed(capsys, *arguments: object) -> str:
    """Return the one sentence of a command that fails, after checking that it is one, and that nothing was sampled."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 1
    out, err = capsys.readouterr()
    assert arguments[0] == "train" or out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"{arguments[0]}: ")
    return err


# ------------------------------------------------------------------ train and sample


def test_a_text_of_ones_own_is_learned_and_sampled(tmp_path, text):
    trained = command("train", "--data", text, *SMALL, "--steps=100", "--seed=3", folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    first, *_, result, advice = trained.stdout.splitlines()
    assert re.fullmatch(r"[\d,]+ parameters, 432 tokens to train on, 100 steps on cpu", first)
    assert re.findall(r"step (\d+): loss", trained.stdout) == [str(step) for step in range(10, 101, 10)]
    assert trained.stdout.count("|") == 1  # the sample at step 100
    found = re.fullmatch(r"Loss in nats per token: ([\d.]+) on validation, ([\d.]+) on test; \d+ seconds .*", result)
    assert float(found[1]) < 1
    assert advice == "python -m transformer_lm sample 'runs/rounds and rounds-default'"

    folder = "runs/rounds and rounds-default"
    options = ["--prompt=abc d", "--num-tokens=20", "--seed=5", "--top-k=3", "--num-samples=2"]
    sampled = command("sample", folder, *options, folder=tmp_path)
    assert sampled.returncode == 0, sampled.stderr
    model, tokenizer = load_model(tmp_path / folder)
    expected = ["".join(sampled_text(model, tokenizer, "abc d", 20, seed=seed, top_k=3)) for seed in (5, 6)]
    assert sampled.stdout == f"abc d{expected[0]}\n---\nabc d{expected[1]}\n"


def test_a_run_that_was_stopped_goes_on(tmp_path, text, run, capsys):
    arguments = ["train", f"--data={text}", *SMALL, f"--out={tmp_path}", "--save-every=3", "--quiet", "--resume"]
    assert main([*arguments, "--steps=6"]) == 0
    (tmp_path / "model.safetensors").unlink()
    shutil.rmtree(tmp_path / "step-00000006")
    written = (tmp_path / "step-00000003" / "run.json").stat().st_mtime_ns
    assert main([*arguments, "--steps=6"]) == 0
    assert losses(tmp_path) == losses(run)
    assert (tmp_path / "step-00000003" / "run.json").stat().st_mtime_ns == written  # it went on from there
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path, run))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def settings(folder: Path) -> dict:
    """Return all that a run has saved about how it was started."""
    table = load_checkpoint(newest_checkpoint(folder)).table
    return table["config"] | table["recipe"]


CHOSEN = {
    "--optimizer=adamw": ("optimizer", "adamw"),
    "--schedule=constant": ("schedule", "constant"),
    "--warmup=2": ("warmup", 2),
    "--weight-decay=0.25": ("weight_decay", 0.25),
    "--learning-rate=0.004": ("learning_rate", 0.004),
    "--positions=relative": ("positions", "relative"),
    "--mlp=swiglu": ("mlp", "swiglu"),
    "--mlp-hidden=7": ("mlp_hidden", 7),
    "--init=torch": ("init", "torch"),
    "--no-residual": ("residual", False),
}


def test_a_run_is_trained_as_chosen_and_goes_on_so(tmp_path, text, run, capsys):
    start = ["train", f"--data={text}", f"--out={tmp_path}", "--save-every=2", "--quiet"]
    assert main([*start, *SMALL, *CHOSEN, "--steps=4"]) == 0
    chosen = settings(tmp_path)
    assert {name: chosen[name] for name, _ in CHOSEN.values()} == dict(CHOSEN.values())
    assert load_model(tmp_path)[0].config.residual is False
    assert {name for name, value in settings(run).items() if chosen[name] != value} == {
        *(name for name, _ in CHOSEN.values()),
        "steps",
    }

    first = losses(tmp_path)
    assert main([*start, "--device=cpu", "--resume", "--steps=6"]) == 0
    assert losses(tmp_path)[:4] == first
    assert len(losses(tmp_path)) == 6
    assert settings(tmp_path) == chosen | {"steps": 6}


def test_a_run_that_goes_on_may_have_another_recipe(tmp_path, text, run, capsys):
    shutil.copytree(run, tmp_path / "run")
    again = ["train", f"--data={text}", f"--out={tmp_path / 'run'}", "--device=cpu", "--resume", "--quiet"]
    assert main([*again, "--steps=8", "--learning-rate=0.001", "--schedule=constant"]) == 0
    expected = {"steps": 8, "learning_rate": 0.001, "schedule": "constant"}
    assert settings(tmp_path / "run") == settings(run) | expected
    assert losses(tmp_path / "run")[:6] == losses(run)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--optimizer=adamw", "optimizer must be muon, as in the run in "),
        ("--positions=learned", "positions must be rotary, as in the run in "),
        ("--mlp=gelu", "mlp must be relu_squared, as in the run in "),
        ("--init=torch", "init must be zero_output, as in the run in "),
        ("--no-residual", "residual must be True, as in the run in "),
        ("--hidden=24", "hidden must be 12, as in the run in "),
        ("--steps=5", "steps must be at least 6, the steps already taken, got 5."),
    ],
)
def test_a_run_does_not_go_on_as_another(run, text, capsys, option, words):
    before = settings(run)
    err = failed(capsys, "train", f"--data={text}", f"--out={run}", "--device=cpu", "--resume", option)
    assert words in err
    assert settings(run) == before


def test_a_run_whose_settings_are_damaged_is_one_sentence(tmp_path, run, text, capsys):
    shutil.copytree(run, tmp_path / "run")
    table = newest_checkpoint(tmp_path / "run") / "run.json"
    table.write_text(table.read_text().replace('"schedule"', '"timetable"'))
    err = failed(capsys, "train", f"--data={text}", f"--out={tmp_path / 'run'}", "--device=cpu", "--resume")
    assert "must hold the settings of a run of this version: " in err
    assert "timetable" in err


def test_without_residual_connections_another_model_is_trained(tmp_path, text, run, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = [f"--data={text}", *SMALL, "--steps=6", "--quiet"]
    assert main(["train", "--no-residual", "--out", "runs/no-residual", *small]) == 0
    ours, others = losses(tmp_path / "runs" / "no-residual"), losses(run)
    assert ours[0] == pytest.approx(others[0], abs=1e-6)  # the output layer begins at 0: every token is equally likely
    assert max(abs(one - other) for one, other in zip(ours, others, strict=True)) > 0.01


def test_samples_come_as_often_as_asked_for(tmp_path, text, capsys):
    often = ["--steps=6", "--loss-every=2", "--sample-every=3"]
    assert main(["train", f"--data={text}", *SMALL, f"--out={tmp_path}", *often]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"step (\d+): loss", out) == ["2", "4", "6"]
    assert out.count("|") == 2


def test_help_names_every_choice(capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "--help"])
    assert end.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    for option, choices in {
        "--optimizer": OPTIMIZERS,
        "--schedule": SCHEDULES,
        "--positions": POSITIONS,
        "--mlp": MLPS,
        "--init": INITS,
    }.items():
        assert f"{option} {{{','.join(choices)}}}" in words.replace("- ", "-")
    assert "--no-residual leave out all residual connections" in words


@pytest.mark.parametrize("option", ["--optimizer=sgd", "--schedule=linear", "--positions=alibi", "--mlp=tanh"])
def test_an_unknown_choice_is_refused_with_the_known_ones(option, capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", option])
    assert end.value.code == 2
    assert re.search(
        rf"argument {option.partition('=')[0]}: invalid choice: '\w+' \(choose from ", capsys.readouterr().err
    )


def test_a_sample_can_continue_the_text_that_the_model_has_not_seen(run, text, capsys):
    capsys.readouterr()
    assert main(["sample", str(run), "--data", str(text), "--num-tokens=5", "--seed=1"]) == 0
    out = capsys.readouterr().out
    assert out[:16] in "abc def ghi\n" * 3
    assert len(out) == 16 + 5 + 1


def test_without_a_prompt_a_sample_begins_with_a_line_break(run, capsys):
    capsys.readouterr()
    assert main(["sample", str(run / "model.safetensors"), "--num-tokens=7", "--temperature=0"]) == 0
    out = capsys.readouterr().out
    assert out[0] == "\n"
    assert len(out) == 1 + 7 + 1


def test_tensorboard_reads_what_training_writes(tmp_path, text, capsys):
    arguments = ["train", f"--data={text}", *SMALL, "--steps=3", f"--out={tmp_path}", "--quiet", "--tensorboard"]
    assert main(arguments) == 0
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [scalar.value for scalar in events.Scalars("loss")] == pytest.approx(losses(tmp_path))


def test_two_processes_have_the_losses_of_one(tmp_path, text, run):
    together = command(
        *("--standalone", "--nproc-per-node=2", "-m", "transformer_lm"),
        *("train", "--data", text, *SMALL, "--steps=6", "--out=together", "--quiet", "--accumulation=2"),
        folder=tmp_path,
        module="torch.distributed.run",
    )
    assert together.returncode == 0, together.stderr
    assert together.stdout.count("Loss in nats per token") == 1
    assert losses(tmp_path / "together") == pytest.approx(losses(run), abs=1e-5)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "together", run))
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-4)


# ------------------------------------------------------------------ data


def test_a_corpus_that_is_there_is_not_fetched_again(tmp_path, monkeypatch, capsys):
    text = tmp_path / "corpus.txt"
    text.write_text("here")
    there = File(text.name, "https://corpus.invalid/", hashlib.sha256(b"here").hexdigest(), 4)
    monkeypatch.setattr(downloads, "CORPORA", {"shakespeare": (there,)})
    monkeypatch.setenv("TRANSFORMER_LM_DATA", str(tmp_path))
    capsys.readouterr()
    assert main(["data"]) == main(["data", "shakespeare"]) == 0
    assert capsys.readouterr() == ("", "")


def test_an_unknown_corpus_is_one_sentence(capsys):
    assert "a corpus must be one of shakespeare, hebrew, " in failed(capsys, "data", "poems")


# ------------------------------------------------------------------ errors


def test_a_missing_text_is_one_sentence(capsys, tmp_path):
    err = failed(capsys, "train", "--data", tmp_path / "no.txt")
    assert "a corpus must be one of shakespeare, hebrew, toy, wikipedia, or the path of a text file" in err


def test_an_error_ends_the_process_with_code_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["transformer_lm", "sample", str(tmp_path / "none")])
    monkeypatch.delitem(sys.modules, "transformer_lm.__main__")  # run once more, as by `python -m`
    with pytest.raises(SystemExit) as end:
        runpy.run_module("transformer_lm", run_name="__main__")
    assert end.value.code == 1
    assert capsys.readouterr().err == f"sample: {tmp_path / 'none'} must be a file, got none there.\n"


def test_a_batch_that_two_processes_can_not_share_is_one_sentence_of_each(tmp_path, text):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "transformer_lm.__main__", "torch._dynamo", "tensorboard"])
    arguments = ["train", f"--data={text}", *SMALL, "--batch-size=3", f"--out={tmp_path / 'run'}"]
    ranks = [context.Process(target=train_as_rank, args=(rank, port, tmp_path, arguments)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 1
    words = "train: batch_size must be a multiple of 2 processes times 1 portions, got 3.\n"
    assert [(tmp_path / f"errors-{rank}").read_text() for rank in range(2)] == [words, words]


def train_as_rank(rank: int, port: int, folder: Path, arguments: list[str]) -> None:
    """Be one of two processes, as torchrun starts them, and write what it says into a file."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with (folder / f"errors-{rank}").open("w") as errors, contextlib.redirect_stderr(errors):
        code = main(arguments)
    sys.exit(code)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prompt=xyz"], "text must only have characters of the vocabulary, got 3 others: 'x' (U+0078)"),
        (["--prompt="], "prompt must have at least one token, got none"),
        (["--temperature=-1"], "temperature must be 0 (greedy) or more, and finite, got -1.0."),
        (["--temperature=nan"], "temperature must be 0 (greedy) or more, and finite, got nan."),
        (["--top-k=0"], "top_k must be a whole number from 1 on, or None for all tokens, got 0."),
        (["--top-p=2"], "top_p must be above 0 and at most 1, or None for all tokens, got 2.0."),
        (["--num-tokens=-1"], "num_tokens must be 0 or more, got -1."),
        (["--device=tpu"], "device must be cpu, cuda, cuda:0 (or another number) or mps, got 'tpu'."),
    ],
)
def test_impossible_options_of_a_sample_are_one_sentence(run, capsys, options, words):
    assert words in failed(capsys, "sample", run, *options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--num-heads=5"], "num_heads must divide hidden, got num_heads=5 and hidden=12."),
        (["--steps=0"], "steps must be a whole number from 1 on, got 0."),
        (["--max-len=100"], "the validation text must be longer than max_len=100, got 24 tokens"),
        (["--accumulation=3"], "accumulation must divide batch_size, got 3 and 4."),
        (["--dropout=1"], "dropout must be at least 0 and below 1, got 1.0."),
        (["--weight-decay=-1"], "weight_decay must be 0 or more, got -1.0."),
        (["--warmup=-1"], "warmup must be a whole number from 0 on, got -1."),
        (["--preset=plain", "--init=zero_output"], "init must not be zero_output if tied, got both"),
        (["--positions=rotary", "--num-heads=4"], "rotary positions must have heads of even width, got 3."),
        (["--sample-every=0"], "sample_every must be 1 or more, got 0."),
        (["--loss-every=0"], "loss_every must be 1 or more, got 0."),
    ],
)
def test_impossible_options_of_training_are_one_sentence(tmp_path, text, capsys, options, words):
    assert words in failed(capsys, "train", f"--data={text}", *SMALL, f"--out={tmp_path}", *options)
    assert os.listdir(tmp_path) == []


def test_a_model_that_was_cut_short_is_one_sentence(tmp_path, run, capsys):
    content = (run / "model.safetensors").read_bytes()
    (tmp_path / "m.safetensors").write_bytes(content[: len(content) // 2])
    err = failed(capsys, "sample", tmp_path / "m.safetensors")
    assert "m.safetensors must be a complete safetensors file, got one that is cut short or of another kind" in err


def test_a_folder_with_a_run_is_one_sentence(run, text, capsys):
    capsys.readouterr()
    assert main(["train", f"--data={text}", *SMALL, f"--out={run}"]) == 1
    assert "which holds a run: resume it, or choose another." in capsys.readouterr().err


def test_a_prompt_and_a_text_to_continue_are_one_too_many(run, capsys):
    with pytest.raises(SystemExit):
        main(["sample", str(run), "--prompt=a", "--data=toy"])
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["sample", "heads"])
def test_a_model_that_translates_is_refused_in_one_sentence(command, capsys):
    path = FOLDER / "lorin.safetensors"
    assert main([command, str(path), *(["toy"] if command == "heads" else [])]) == 1
    assert capsys.readouterr().err == (
        f"{command}: model must be a language model, got TransformerEncoderDecoder in {path}.\n"
    )
