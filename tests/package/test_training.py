"""Training: the plain loop, killed and resumed runs, and clear refusals.

Sizes: (b, h, n, dh) = (8, 2, 5, 4), one layer and 7 tokens. The text repeats itself, so that it can be learned.
"""

import copy
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.texts.corpora import Corpus
from transformer_lm.texts.tokenizers import CharTokenizer
from transformer_lm.training import objectives
from transformer_lm.training.checkpoints import load_model, newest_checkpoint
from transformer_lm.training.loop import History, Recipe, make_optimizers, train
from transformer_lm.training.muon import Muon
from transformer_lm.training.presets import PRESETS, preset

N, V = 5, 7
RECIPE = Recipe(6, batch_size=8, learning_rate=0.01)
KILLED = Recipe(9, batch_size=2, optimizer="muon", warmup=2, schedule="plateau")


def corpus_of(name: str = "rounds", letters: str = "abcdefg", rounds: int = 30) -> Corpus:
    """Return a text that repeats itself, now and then with a letter left out."""
    tokenizer = CharTokenizer(letters)
    text = "".join(letters[: -1 if number % 3 == 0 else None] for number in range(rounds))
    tokens = torch.tensor(tokenizer.encode(text))
    return Corpus(name, tokens, tokens[:23], tokens[:11], tokenizer)


def model_of(**options) -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(LMConfig(V, **{"max_len": N, "hidden": 8, "num_layers": 1, "num_heads": 2} | options))


def trained(recipe: Recipe = RECIPE, corpus: Corpus | None = None, **options) -> History:
    settings = {name: options.pop(name) for name in ("dropout", "positions") if name in options}
    return train(model_of(**settings), corpus or corpus_of(), recipe, progress=False, **options)


def numbers(history: History) -> tuple:
    """Return all of a history but the time that it took."""
    return history.loss, history.gradient_norm, history.learning_rate, history.validation


def train_to_be_killed(folder: Path, call: int | None = None) -> None:
    """Train in this process; at a given call that changes something on the disk, the process is killed before it."""
    calls = 0

    def killing(change):
        def changed(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments, **options)

        return changed

    for name in ("fsync", "mkdir", "rename", "replace", "rmdir", "unlink"):
        setattr(os, name, killing(getattr(os, name)))
    trained(KILLED, folder=folder, resume=True, save_every=1, evaluate_every=2, dropout=0.3)


@pytest.fixture(scope="module")
def processes():
    """Return where processes come from: a server that has imported torch once, and forks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["pytest", "transformer_lm.training.loop", "torch._dynamo"]
    )  # the last for optimizers
    return context


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> tuple[History, Path]:
    """Return the history of a run that was not killed, and its folder."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return trained(KILLED, folder=folder, save_every=1, evaluate_every=2, dropout=0.3), folder


# ------------------------------------------------------------------ equals an independent reference


@pytest.mark.parametrize("clip", [None, 0.05])
def test_training_is_the_plain_loop_with_adamw(clip, monkeypatch):
    batches, draw = [], objectives.random_slices
    monkeypatch.setattr(objectives, "random_slices", lambda *given: batches.append(draw(*given)) or batches[-1])
    model = model_of().double()
    by_hand = copy.deepcopy(model)
    recipe = Recipe(6, 8, learning_rate=0.01, betas=(0.8, 0.95), weight_decay=0.1, warmup=2, clip=clip)
    history = train(model, corpus_of(), recipe, progress=False)

    assert len({tuple(batch.flatten().tolist()) for batch in batches}) == 6  # a new one for each step
    groups = [[], []]
    for parameter in by_hand.parameters():
        groups[parameter.dim() == 2].append(parameter)
    settings = {"lr": 0.01, "betas": (0.8, 0.95)}
    optimizers = [torch.optim.AdamW(group, **settings, weight_decay=0.1 * kind) for kind, group in enumerate(groups)]
    shares = [0.5, 1, 1, *(0.1 + 0.45 * (1 + math.cos(math.pi * step / 4)) for step in (1, 2, 3))]
    for step, (batch, share) in enumerate(zip(batches, shares, strict=True)):
        assert batch.shape == (8, N + 1)
        loss = F.cross_entropy(by_hand(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
        by_hand.zero_grad()
        loss.backward()
        norm = torch.cat([parameter.grad.flatten() for parameter in by_hand.parameters()]).norm()
        for parameter in by_hand.parameters() if clip and norm > clip else ():
            parameter.grad *= clip / norm
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.01 * share
            optimizer.step()
        assert history.loss[step] == pytest.approx(loss.item(), rel=1e-6)
        assert history.gradient_norm[step] == pytest.approx(norm.item(), rel=1e-6)  # before it is clipped
        assert history.learning_rate[step] == pytest.approx(0.01 * share)
    for ours, theirs in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    assert clip is None or max(history.gradient_norm) > clip


@pytest.mark.parametrize(
    ("recipe", "shares"),
    [
        (Recipe(4, schedule="constant"), [1, 1, 1, 1]),
        (Recipe(4, schedule="constant", warmup=3), [1 / 3, 2 / 3, 1, 1]),
        (Recipe(4, schedule="cosine"), [1, 0.1 + 0.45 * (1 + math.sqrt(0.5)), 0.55, 0.1 + 0.45 * (1 - math.sqrt(0.5))]),
        (Recipe(4, schedule="cosine", warmup=2), [0.5, 1, 1, 0.55]),
        (Recipe(5, schedule="plateau", decay=0.6), [1, 1, 1, 2 / 3, 1 / 3]),
        (Recipe(5, schedule="plateau", decay=0.8, warmup=1), [1, 1, 0.75, 0.5, 0.25]),
        (Recipe(2, schedule="plateau", warmup=4), [0.25, 0.5]),
    ],
)
def test_the_learning_rate_is_the_schedule_by_hand(recipe, shares):
    assert [recipe.share(step) for step in range(recipe.steps)] == pytest.approx(shares)


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize(("schedule", "end"), [("constant", 1), ("cosine", 0.1), ("plateau", 0)])
def test_beyond_its_last_step_a_schedule_stays_where_it_ended(schedule, end, warmup):
    recipe = Recipe(10, schedule=schedule, warmup=warmup)
    assert [recipe.share(step) for step in (10, 11, 15, 20, 1000)] == pytest.approx(5 * [end])


@pytest.mark.parametrize("schedule", ["constant", "cosine", "plateau"])
def test_a_warm_up_rises_in_equal_steps_and_wastes_none(schedule):
    recipe = Recipe(100, schedule=schedule, warmup=4)
    assert [recipe.share(step) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1, 1])


def test_a_schedule_never_rises_again_nor_falls_below_0():
    for schedule in ("constant", "cosine", "plateau"):
        for warmup in (0, 4, 10, 12):
            recipe = Recipe(10, schedule=schedule, warmup=warmup)
            shares = [recipe.share(step) for step in range(40)]
            assert min(shares) >= 0
            assert shares[warmup:] == sorted(shares[warmup:], reverse=True)


def test_the_validation_loss_is_that_of_the_model_after_the_step():
    losses = []

    def measured(model, history):
        windows = corpus_of().validation[: N * 4].view(4, N)
        labels = corpus_of().validation[1 : N * 4 + 1].view(4, N)
        losses.append((history.step, F.cross_entropy(model(windows).transpose(1, 2), labels).item()))

    history = trained(evaluate_every=4, reports=[measured])
    assert [step for step, _ in history.validation] == [4, 6]
    for step, loss in history.validation:
        assert loss == pytest.approx(dict(losses)[step], rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_four_portions_are_one_batch(optimizer):
    recipe = replace(RECIPE, optimizer=optimizer)
    models = model_of().double(), model_of().double()
    one, four = (
        train(model, corpus_of(), replace(recipe, accumulation=portions), progress=False)
        for model, portions in zip(models, (1, 4), strict=True)
    )
    assert four.loss == pytest.approx(one.loss, rel=1e-12)
    assert four.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-9)
    for ours, theirs in zip(*map(nn.Module.parameters, models), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------------ keeps a property


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_loss_falls(optimizer):
    history = trained(Recipe(60, batch_size=8, optimizer=optimizer, learning_rate=0.02))
    assert history.loss[0] == pytest.approx(math.log(V), rel=0.05)
    assert history.loss[-1] < 0.6
    assert history.validation[-1][1] < 0.6
    assert len(history.loss) == len(history.gradient_norm) == len(history.learning_rate) == history.step == 60
    assert history.seconds > 0


def test_the_same_seed_gives_exactly_the_same_history_and_another_seed_another():
    one, same, other = (trained(replace(RECIPE, seed=seed), dropout=0.3) for seed in (1, 1, 2))
    assert numbers(one) == numbers(same)
    assert one.loss != other.loss


def test_a_longer_training_begins_like_a_shorter_one():
    short, long = (trained(Recipe(steps, 8, schedule="constant"), dropout=0.3) for steps in (3, 6))
    assert long.loss[:3] == short.loss


def test_looking_on_changes_nothing():
    def looks_on(model, history):
        model.better_sample_continuation([1, 2], 3, seed=0)
        assert model.training

    assert trained(dropout=0.3).loss == trained(dropout=0.3, evaluate_every=1, reports=[looks_on]).loss


def test_reports_are_called_after_every_step_whatever_they_come_in():
    steps = []
    trained(reports=(report for report in [lambda _, history: steps.append(history.step)]))
    assert steps == [1, 2, 3, 4, 5, 6]


def test_muon_takes_the_matrices_in_blocks_and_adamw_all_else():
    model = model_of(positions="relative", tied=False)
    adamw, muon = make_optimizers(model, Recipe(1, optimizer="muon", weight_decay=0.1))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    taken = {names[id(parameter)] for group in muon.param_groups for parameter in group["params"]}
    assert taken == {f"blocks.0.{part}.weight" for part in ("attention.k", "attention.q", "attention.v")} | {
        f"blocks.0.{part}.weight" for part in ("attention.mix", "mlp.up", "mlp.down")
    }
    others = [names[id(parameter)] for group in adamw.param_groups for parameter in group["params"]]
    assert sorted([*others, *taken]) == sorted(names.values())
    assert [group["weight_decay"] for group in adamw.param_groups] == [0.1, 0.0]
    assert isinstance(muon, Muon)


def test_bfloat16_is_used_if_asked_for_and_weights_stay_in_float32():
    dtypes, model = set(), model_of()
    model.blocks[0].mlp.up.register_forward_hook(lambda _, __, output: dtypes.add(output.dtype))
    history = train(model, corpus_of(), replace(RECIPE, precision="bfloat16", steps=1), progress=False)
    assert dtypes == {torch.bfloat16, torch.float32}  # the latter in validation
    assert model.blocks[0].mlp.up.weight.dtype == torch.float32
    assert history.loss[0] == pytest.approx(trained(replace(RECIPE, steps=1)).loss[0], rel=0.02)


def test_the_model_is_stored_at_the_end(tmp_path):
    model = model_of()
    train(model, corpus_of(), RECIPE, folder=tmp_path, save_every=4, progress=False)
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "step-00000004", "step-00000006"]
    stored, tokenizer = load_model(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(stored.parameters(), model.parameters(), strict=True))
    assert tokenizer == corpus_of().tokenizer


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_model_that_learns(name):
    chosen = preset(name)
    model = chosen.make_model(V, max_len=N, hidden=12, num_heads=3, num_layers=1)
    recipe = chosen.make_recipe(steps=30, batch_size=8, warmup=2, learning_rate=0.01)
    assert (model.config.hidden, recipe.steps, recipe.schedule) == (12, 30, chosen.recipe.schedule)
    history = train(model, corpus_of(), recipe, progress=False)
    assert history.loss[-1] < history.loss[0] - 0.3


# ------------------------------------------------------------------ killed and resumed


def assert_as_if_never_killed(folder: Path, uninterrupted: tuple[History, Path]) -> None:
    expected, other = uninterrupted
    history = trained(KILLED, folder=folder, resume=True, dropout=0.3)
    assert numbers(history) == numbers(expected)
    for name in ("model.safetensors", "step-00000009/optimizer.safetensors", "step-00000009/random.safetensors"):
        ours, theirs = load_file(folder / name), load_file(other / name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), name


def test_a_run_killed_at_each_change_on_the_disk_ends_as_if_nothing_had_been(tmp_path, processes, uninterrupted):
    for call in range(1, 100):
        process = processes.Process(target=train_to_be_killed, args=(tmp_path, call))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert call > 15  # at least once at each of those of one checkpoint
    assert_as_if_never_killed(tmp_path, uninterrupted)


def test_a_run_killed_at_random_moments_ends_as_if_nothing_had_been(tmp_path, processes, uninterrupted):
    choose, patience, killed = random.Random(0), 0.02, 0
    while True:
        process = processes.Process(target=train_to_be_killed, args=(tmp_path,))
        process.start()
        process.join(choose.uniform(0, patience))
        process.kill()
        process.join()
        if process.exitcode == 0:
            break
        patience, killed = 1.2 * patience, killed + 1  # at last it gets to the end, even on a slow machine
    assert killed > 3
    assert_as_if_never_killed(tmp_path, uninterrupted)


def test_a_run_that_was_finished_is_left_as_it_is(tmp_path):
    history = trained(folder=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in newest_checkpoint(tmp_path).iterdir()}
    stored = load_file(tmp_path / "model.safetensors")
    model, called = model_of(), []
    again = train(model, corpus_of(), RECIPE, folder=tmp_path, resume=True, reports=[called.append], progress=False)
    assert again == history
    assert called == []
    assert {path: path.stat().st_mtime_ns for path in newest_checkpoint(tmp_path).iterdir()} == before
    again = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(again[name], stored[name]) for name in stored)
    assert all(torch.equal(parameter, stored[name]) for name, parameter in model.named_parameters())


def test_a_finished_run_can_have_more_steps_and_none_taken_back(tmp_path):
    recipe = replace(RECIPE, schedule="constant")
    trained(recipe, folder=tmp_path, dropout=0.3)
    longer = trained(replace(recipe, steps=9), folder=tmp_path, resume=True, dropout=0.3)
    assert longer.loss == trained(replace(recipe, steps=9), dropout=0.3).loss
    with pytest.raises(ValueError, match="steps must be at least 9, the steps already taken, got 8"):
        trained(replace(recipe, steps=8), folder=tmp_path, resume=True, dropout=0.3)


def test_a_run_that_is_to_end_where_it_was_stopped_gets_its_validation_loss(tmp_path):
    history = trained(folder=tmp_path, save_every=3)
    shutil.rmtree(tmp_path / "step-00000006")
    short = trained(replace(RECIPE, steps=3), folder=tmp_path, resume=True)
    assert short.loss == history.loss[:3]
    assert [step for step, _ in short.validation] == [3]


def test_resuming_where_there_is_no_run_starts_one(tmp_path):
    assert trained(folder=tmp_path / "new", resume=True).loss == trained().loss


def test_a_folder_that_holds_a_run_is_refused_without_resume(tmp_path):
    trained(folder=tmp_path)
    words = f"folder must be empty, got {tmp_path}, which holds a run: resume it, or choose another."
    with pytest.raises(ValueError, match=re.escape(words)):
        trained(folder=tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "random.safetensors", "run.json"])
def test_a_newest_checkpoint_that_was_cut_short_is_refused(tmp_path, name):
    trained(folder=tmp_path, save_every=3)
    file = tmp_path / "step-00000006" / name
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"step-00000006.* must (be a complete safetensors|hold a complete check)"):
        trained(folder=tmp_path, resume=True)
    shutil.rmtree(file.parent)  # then the one before it is the newest
    assert trained(folder=tmp_path, resume=True).loss == trained().loss


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dropout": 0.1}, "must be of the same config, got {'vocab_size': 7,"),
        ({"corpus": corpus_of(letters="ABCDEFG")}, "must be of the same tokenizer, got {'kind': 'characters'"),
        ({"corpus": corpus_of("squares")}, "must be of the same corpus, got rounds."),
        ({"corpus": corpus_of(rounds=31)}, "must be of the same tokens, got 200."),
        ({"recipe": replace(RECIPE, optimizer="muon")}, "must be of a run with the same optimizer, got "),
    ],
)
def test_another_run_is_not_resumed(tmp_path, options, words):
    trained(folder=tmp_path, save_every=3)
    before = json.loads((tmp_path / "step-00000006" / "run.json").read_text())
    with pytest.raises(ValueError, match=f"step-00000006 {re.escape(words)}"):
        trained(folder=tmp_path, resume=True, **options)
    assert json.loads((tmp_path / "step-00000006" / "run.json").read_text()) == before


# ------------------------------------------------------------------ refuses bad input with the right words


def test_a_loss_that_is_not_finite_stops_training_with_advice(tmp_path):
    trained(folder=tmp_path, save_every=3)
    wild = Recipe(20, batch_size=8, learning_rate=1e30, schedule="constant")
    words = (
        r"loss and gradient must be finite, got nan and nan in step \d+. A lower learning rate, more warm-up steps or "
        "a smaller clip may help; the last checkpoint, if any, is still there."
    )
    with pytest.raises(FloatingPointError, match=words):
        trained(wild, folder=tmp_path, resume=True)
    model, _ = load_model(newest_checkpoint(tmp_path) / "model.safetensors")
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert trained(replace(RECIPE, steps=8), folder=tmp_path, resume=True).step == 8  # from there on, and tamer


def test_a_weight_that_is_no_number_stops_training_before_any_changes():
    model = model_of()
    with torch.no_grad():
        model.blocks[0].mlp.up.weight[0, 0] = math.nan
    before = model.embed.tokens.weight.detach().clone()
    with pytest.raises(FloatingPointError, match="got nan and nan in step 1"):
        train(model, corpus_of(), RECIPE, progress=False)
    assert torch.equal(model.embed.tokens.weight, before)


@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_text_no_longer_than_the_context_is_refused_and_one_token_more_is_enough(part):
    corpus = corpus_of()
    words = f"the {part} text must be longer than max_len=5, got 5 tokens: take a longer text or a smaller max_len."
    with pytest.raises(ValueError, match=words):
        trained(corpus=replace(corpus, **{part: corpus.train[:N]}))
    trained(corpus=replace(corpus, **{part: corpus.train[: N + 1]}))


def test_a_corpus_of_other_tokens_is_refused():
    with pytest.raises(ValueError, match="model and corpus must have the same number of tokens, got 7 and 8"):
        trained(corpus=corpus_of(letters="abcdefgh"))


@pytest.mark.parametrize("name", ["save_every", "evaluate_every"])
def test_what_is_to_happen_every_0_steps_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be 1 or more, got 0."):
        trained(**{name: 0})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "steps must be a whole number from 1 on, got 0."),
        ({"batch_size": 2.0}, "batch_size must be a whole number from 1 on, got 2.0."),
        ({"warmup": -1}, "warmup must be a whole number from 0 on, got -1."),
        ({"accumulation": True}, "accumulation must be a whole number from 1 on, got True."),
        ({"accumulation": 3}, "accumulation must divide batch_size, got 3 and 16."),
        ({"seed": -1}, "seed must be a whole number from 0 on, got -1."),
        ({"learning_rate": 0.0}, "learning_rate must be above 0 and finite, got 0.0."),
        ({"learning_rate": math.inf}, "learning_rate must be above 0 and finite, got inf."),
        ({"matrix_learning_rate": math.nan}, "matrix_learning_rate must be above 0 and finite, got nan."),
        ({"clip": 0}, "clip must be above 0 and finite, got 0."),
        ({"weight_decay": -0.1}, "weight_decay must be 0 or more, got -0.1."),
        ({"decay": 0}, "decay must be above 0 and at most 1, got 0."),
        ({"decay": 1.1}, "decay must be above 0 and at most 1, got 1.1."),
        ({"optimizer": "sgd"}, "optimizer must be one of adamw, muon, got 'sgd'."),
        ({"schedule": "linear"}, "schedule must be one of constant, cosine, plateau, got 'linear'."),
        ({"precision": "float16"}, "precision must be one of auto, float32, bfloat16, got 'float16'."),
    ],
)
def test_impossible_recipes_are_refused(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        Recipe(**{"steps": 10} | options)


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match="preset must be one of plain, default, large, got 'huge'"):
        preset("huge")
