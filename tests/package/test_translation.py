"""Translation: masks, shifted targets and the loss by hand, training on pairs, and models that translate on disk.

Sizes: (b, n, v) = (2, 4, 5) by hand; the models are one layer of (h, dh) = (2, 4) on 200 toy sentences.
"""

import copy
import itertools
import json
import math
import multiprocessing
import os
import re
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from transformer_lm.heads.recording import record_attention
from transformer_lm.modeling_encoder_decoder import EncoderDecoderConfig, TransformerEncoderDecoder, target_mask
from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.modeling_recurrent import RecurrentConfig, RecurrentEncoderDecoder
from transformer_lm.shapes import ShapeError
from transformer_lm.texts.corpora import Corpus, load_toy
from transformer_lm.texts.pairs import PairCorpus, load_toy_pairs
from transformer_lm.texts.tokenizers import CharTokenizer, tokenizer_from_table
from transformer_lm.texts.word_tokenizers import END, PAD, START, BytePairTokenizer, PairTokenizer, WordTokenizer
from transformer_lm.training import objectives
from transformer_lm.training.checkpoints import load_model, newest_checkpoint, read_header, save_model
from transformer_lm.training.loop import History, Recipe, train
from transformer_lm.training.objectives import Translation
from transformer_lm.translation.exact_match import cross_attention_map
from transformer_lm.translation.targets import shift_target, translation_loss

RECIPE = Recipe(5, batch_size=48, learning_rate=0.01)  # 4 batches in an epoch, and 8 pairs too many
KILLED = Recipe(9, batch_size=48, warmup=2, label_smoothing=0.1, clip=0.5)
KINDS = ("transformer", "recurrent")
each_kind = pytest.mark.parametrize("kind", KINDS)
WORDS = PairTokenizer(WordTokenizer((" the", " owl", " sings")), WordTokenizer((" le", " hibou", " chante", " .")))


def corpus_of() -> PairCorpus:
    return load_toy_pairs(200)


@pytest.fixture(scope="module")
def corpus() -> PairCorpus:
    return corpus_of()


def model_of(kind: str, corpus: PairCorpus, **options) -> nn.Module:
    torch.manual_seed(0)
    sizes = corpus.source_tokenizer.vocab_size, corpus.target_tokenizer.vocab_size
    if kind == "transformer":
        return TransformerEncoderDecoder(
            EncoderDecoderConfig(*sizes, **{"max_len": 64, "hidden": 8, "num_layers": 1, "num_heads": 2} | options)
        )
    return RecurrentEncoderDecoder(RecurrentConfig(*sizes, **{"hidden": 6} | options))


def numbers(history: History) -> tuple:
    """Return all of a history but the time that it took."""
    return history.loss, history.gradient_norm, history.learning_rate, history.validation


def numpy_loss(logits: np.ndarray, labels: np.ndarray, pad: int, smoothing: float = 0.0) -> float:
    """Return the loss, label by label."""
    losses, v = [], logits.shape[-1]
    for row, place in np.ndindex(labels.shape):
        if labels[row, place] != pad:
            powers = np.exp(logits[row, place])
            surprises = -np.log(powers / powers.sum())  # (v,)
            wanted = np.full(v, smoothing / v)
            wanted[labels[row, place]] += 1 - smoothing
            losses.append(wanted @ surprises)
    return float(np.mean(losses))


def labelled(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return decoder inputs and labels (b, n + 1) of padded targets (b, n), row by row."""
    inputs, labels = [], []
    for row in targets.tolist():
        words = [token for token in row if token != PAD]
        inputs.append([START, *words] + [PAD] * (len(row) - len(words)))
        labels.append([*words, END] + [PAD] * (len(row) - len(words)))
    return torch.tensor(inputs), torch.tensor(labels)


# ------------------------------------------------------------------ masks, shifted targets and the loss by hand


def test_a_target_reads_itself_and_its_past_and_no_padding():
    expected = [
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]],
    ]
    mask = target_mask(torch.tensor([[1, 5, 6, 7], [1, 5, 9, 9]]), pad=9)
    assert mask.dtype == torch.bool
    assert mask.long().tolist() == expected


def test_a_target_is_shifted_by_its_start_and_its_end():
    targets = torch.tensor([[5, 6, 7], [8, 0, 0]])
    before = targets.clone()
    inputs, labels = shift_target(targets, start=1, end=2, pad=0)
    assert inputs.tolist() == [[1, 5, 6, 7], [1, 8, 0, 0]]
    assert labels.tolist() == [[5, 6, 7, 2], [8, 2, 0, 0]]
    assert torch.equal(targets, before)


@pytest.mark.parametrize(("start", "end", "pad"), [(1, 2, 0), (0, 9, 3)])
def test_inputs_and_labels_are_the_target_one_place_apart(start, end, pad):
    words = [token for token in range(4, 12) if token not in (start, end, pad)]
    lengths = (6, 1, 4)
    rows = [[words[(row + place) % len(words)] for place in range(length)] for row, length in enumerate(lengths)]
    targets = torch.tensor([row + [pad] * (6 - len(row)) for row in rows])
    inputs, labels = shift_target(targets, start, end, pad)
    assert inputs.shape == labels.shape == (3, 7)
    for row, read, said in zip(rows, inputs.tolist(), labels.tolist(), strict=True):
        assert read == [start, *row] + [pad] * (6 - len(row))
        assert said == [*row, end] + [pad] * (6 - len(row))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("pad", [0, 3])
def test_the_loss_equals_numpy(smoothing, pad):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64)
    labels = torch.tensor([[4, 1, 2, pad], [1, pad, pad, pad]])
    expected = numpy_loss(logits.numpy(), labels.numpy(), pad, smoothing)
    loss = translation_loss(logits, labels, pad, smoothing)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_ignores_padding_and_its_gradient_too(smoothing):
    logits = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[4, 1, 2, 0], [1, 0, 0, 0]])
    loss = translation_loss(logits, labels, PAD, smoothing)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.equal(gradient.abs().sum(-1) > 0, labels != PAD)
    changed = torch.where((labels != PAD)[:, :, None], logits, logits + 5 * torch.randn(2, 4, 5))
    longer = nn.functional.pad(changed, (0, 0, 0, 2)), nn.functional.pad(labels, (0, 2), value=PAD)
    assert translation_loss(*longer, PAD, smoothing).item() == pytest.approx(loss.item(), rel=1e-12)


def test_a_sure_model_that_is_right_loses_nothing_unless_labels_are_smoothed():
    labels = torch.tensor([[4, 1, 2, 0], [1, 0, 0, 0]])
    logits = 100.0 * nn.functional.one_hot(labels, 5)
    assert translation_loss(logits, labels, PAD).item() == pytest.approx(0, abs=1e-6)
    assert translation_loss(logits, labels, PAD, 0.1).item() == pytest.approx(0.1 * 0.8 * 100)
    assert translation_loss(torch.zeros(2, 4, 5), labels, PAD, 0.1).item() == pytest.approx(math.log(5))


def test_shapes_that_disagree_are_refused():
    with pytest.raises(ShapeError, match=r"axis n must have one size, got 4 in logits .* and 3 in labels"):
        translation_loss(torch.zeros(2, 4, 5), torch.zeros(2, 3, dtype=torch.long), PAD)
    with pytest.raises(ShapeError, match=r"tokens must have the 2 axes \(b, n\), got 1"):
        target_mask(torch.zeros(4, dtype=torch.long), PAD)


# ------------------------------------------------------------------ training on pairs


@each_kind
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_training_is_the_plain_loop(kind, smoothing, corpus, monkeypatch):
    batches, pad = [], objectives.padded_pairs
    monkeypatch.setattr(objectives, "padded_pairs", lambda pairs: batches.append((pairs, pad(pairs))) or batches[-1][1])
    model = model_of(kind, corpus).double()
    by_hand = copy.deepcopy(model)
    recipe = replace(RECIPE, label_smoothing=smoothing, clip=None, schedule="constant", betas=(0.8, 0.95))
    history = train(model, corpus, recipe, progress=False)
    steps = batches[: recipe.steps]  # then comes the validation
    optimizer = torch.optim.AdamW(by_hand.parameters(), lr=0.01, betas=(0.8, 0.95), weight_decay=0.0)
    for step, (pairs, (source, target)) in enumerate(steps):
        assert len(pairs) == 48
        assert [[token for token in row if token != PAD] for row in source.tolist()] == [
            list(pair[0]) for pair in pairs
        ]
        assert [[token for token in row if token != PAD] for row in target.tolist()] == [
            list(pair[1]) for pair in pairs
        ]
        inputs, labels = labelled(target)
        expected = by_hand(source, inputs).log_softmax(-1)  # (b, n, v)
        of_labels = expected.gather(2, labels[:, :, None])[:, :, 0]
        losses = -(1 - smoothing) * of_labels - smoothing * expected.mean(-1)
        loss = losses[labels != PAD].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        norm = torch.cat([parameter.grad.flatten() for parameter in by_hand.parameters()]).norm().item()
        assert history.loss[step] == pytest.approx(loss.item(), rel=1e-8)
        assert history.gradient_norm[step] == pytest.approx(norm, rel=1e-6)
    for ours, theirs in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@each_kind
def test_the_validation_loss_is_that_of_each_pair_alone_without_smoothing_or_dropout(kind, corpus):
    model = model_of(kind, corpus, dropout=0.4)
    history = train(model, corpus, replace(RECIPE, label_smoothing=0.3), progress=False)
    losses = []
    for source, target in corpus.validation:
        logits = model.eval()(torch.tensor([source]), torch.tensor([[START, *target]])).log_softmax(-1)
        losses += [-logits[0, place, token].item() for place, token in enumerate([*target, END])]
    assert history.validation == [(5, pytest.approx(np.mean(losses), rel=1e-5))]


def test_the_validation_loss_counts_every_token_alike_however_many_batches_there_are(corpus, monkeypatch):
    task, model = Translation(model_of("recurrent", corpus), corpus, 48, 0, 0.0), model_of("recurrent", corpus)
    at_once = task.validation_loss(model)
    monkeypatch.setattr(objectives, "EVALUATED", 3)
    assert task.validation_loss(model) == pytest.approx(at_once, rel=1e-6)
    assert model.training


@each_kind
def test_four_portions_are_one_batch_although_they_have_different_numbers_of_labels(kind, corpus):
    models = model_of(kind, corpus).double(), model_of(kind, corpus).double()
    one, four = (
        train(model, corpus, replace(RECIPE, label_smoothing=0.1, accumulation=portions), progress=False)
        for model, portions in zip(models, (1, 4), strict=True)
    )
    assert four.loss == pytest.approx(one.loss, rel=1e-12)
    assert four.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-9)
    for ours, theirs in zip(*map(nn.Module.parameters, models), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    task = Translation(models[0], corpus, 48, 0, 0.1)
    portions = zip(*(tensor.chunk(4) for tensor in task.batch(0)), strict=True)
    assert len({task.num_labels(portion) for portion in portions}) > 1


@pytest.mark.parametrize("portions", [2, 3])
def test_the_gradients_of_portions_add_up_to_that_of_the_batch(portions, corpus):
    """A short sentence in one portion and long ones in another: an average of averages would be wrong."""
    model = model_of("transformer", corpus).double()
    task = Translation(model, corpus, 6, 0, 0.1)
    pairs = sorted(corpus.train, key=lambda pair: len(pair[1]))
    batch = objectives._labeled([*pairs[:3], *pairs[-3:]])
    parameters, total = list(model.parameters()), task.num_labels(batch)
    whole = task.loss(model, batch)
    expected = torch.autograd.grad(whole, parameters)
    loss, gradients = 0.0, [torch.zeros_like(parameter) for parameter in parameters]
    for portion in zip(*(tensor.chunk(portions) for tensor in batch), strict=True):
        part = task.loss(model, portion) * (task.num_labels(portion) / total)
        gradients = [a + b for a, b in zip(gradients, torch.autograd.grad(part, parameters), strict=True)]
        loss += part.item()
    assert loss == pytest.approx(whole.item(), rel=1e-12)
    torch.testing.assert_close(gradients, list(expected), rtol=1e-9, atol=1e-12)


def test_batches_depend_on_seed_and_step_alone_and_an_epoch_has_no_pair_twice(corpus):
    model = model_of("transformer", corpus)
    task, other = (Translation(model, corpus, 48, seed, 0.0) for seed in (0, 1))
    batches = [task.batch(step) for step in range(8)]
    backwards = [Translation(model, corpus, 48, 0, 0.0).batch(step) for step in reversed(range(8))]
    for ours, theirs in zip(batches, reversed(backwards), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for epoch in (batches[:4], batches[4:]):
        sentences = [tuple(token for token in row if token != PAD) for batch in epoch for row in batch[0].tolist()]
        assert len(set(sentences)) == len(sentences) == 4 * 48
    first, second = ({str(batch[0].tolist()) for batch in epoch} for epoch in (batches[:4], batches[4:]))
    assert first != second
    assert {str(other.batch(step)[0].tolist()) for step in range(4)} != first


@each_kind
def test_the_loss_falls(kind, corpus):
    history = train(model_of(kind, corpus, hidden=16), corpus, Recipe(80, 20, learning_rate=0.02), progress=False)
    assert history.loss[0] == pytest.approx(math.log(corpus.target_tokenizer.vocab_size), rel=0.1)
    assert history.validation[-1][1] < history.loss[0] - 1


def test_muon_takes_the_matrices_in_blocks(corpus):
    history = train(model_of("transformer", corpus), corpus, replace(RECIPE, optimizer="muon"), progress=False)
    assert all(map(math.isfinite, history.loss))


def test_the_same_seed_gives_exactly_the_same_history_and_another_seed_another(corpus):
    one, same, other = (
        train(model_of("transformer", corpus, dropout=0.3), corpus, replace(RECIPE, seed=seed), progress=False)
        for seed in (1, 1, 2)
    )
    assert numbers(one) == numbers(same)
    assert one.loss != other.loss


# ------------------------------------------------------------------ killed and resumed


def train_to_be_killed(kind: str, folder: Path, step: int) -> None:
    """Train in this process, which is killed after a step."""
    corpus = corpus_of()

    def killing(_: nn.Module, history: History) -> None:
        if history.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    model = model_of(kind, corpus, dropout=0.3)
    train(model, corpus, KILLED, folder=folder, resume=True, save_every=2, reports=[killing], progress=False)


@pytest.fixture(scope="module")
def processes():
    """Return where processes come from: a server that has imported torch once, and forks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["pytest", "transformer_lm.training.loop", "torch._dynamo"]
    )  # the last for optimizers
    return context


@each_kind
def test_a_run_that_was_killed_twice_ends_as_if_nothing_had_been(kind, corpus, processes, tmp_path):
    expected_model = model_of(kind, corpus, dropout=0.3)
    expected = train(expected_model, corpus, KILLED, progress=False)
    for step in (3, 7):  # in the first epoch, from where it goes on in the second; each time a step is lost
        process = processes.Process(target=train_to_be_killed, args=(kind, tmp_path, step))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert newest_checkpoint(tmp_path).name == f"step-0000000{step - 1}"
    model = model_of(kind, corpus, dropout=0.3)
    history = train(model, corpus, KILLED, folder=tmp_path, resume=True, progress=False)
    assert numbers(history) == numbers(expected)
    stored, tokenizer = load_model(tmp_path)
    for one in (model, stored):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), expected_model.parameters(), strict=True))
    assert tokenizer == corpus.tokenizer


def test_a_run_of_another_model_or_corpus_is_not_resumed(corpus, tmp_path):
    train(model_of("transformer", corpus), corpus, RECIPE, folder=tmp_path, progress=False)
    recurrent = model_of("recurrent", corpus, hidden=8)
    with pytest.raises(ValueError, match=r"step-00000005 must be of the same config, got \{'source_vocab_size'"):
        train(recurrent, corpus, RECIPE, folder=tmp_path, resume=True, progress=False)
    with pytest.raises(ValueError, match=r"step-00000005 must be of the same corpus, got toy\."):
        train(
            model_of("transformer", corpus),
            replace(corpus, name="other"),
            RECIPE,
            folder=tmp_path,
            resume=True,
            progress=False,
        )


# ------------------------------------------------------------------ refuses what does not fit


def test_label_smoothing_of_a_language_model_is_refused():
    tokenizer = CharTokenizer("abc")
    text = torch.tensor(tokenizer.encode("abc" * 20))
    model = TransformerLM(LMConfig(3, 5, hidden=8, num_layers=1, num_heads=2))
    with pytest.raises(ValueError, match=r"label_smoothing must be 0 for a language model, got 0\.1"):
        train(model, Corpus("abc", text, text, text, tokenizer), Recipe(2, label_smoothing=0.1), progress=False)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, math.nan])
def test_impossible_label_smoothing_is_refused(smoothing):
    with pytest.raises(ValueError, match=f"label_smoothing must be at least 0 and below 1, got {smoothing}"):
        Recipe(2, label_smoothing=smoothing)


def test_a_model_of_other_vocabularies_is_refused(corpus):
    model = TransformerEncoderDecoder(EncoderDecoderConfig(9, 11, 64, 8, 1, 2))
    sizes = corpus.source_tokenizer.vocab_size, corpus.target_tokenizer.vocab_size
    words = f"model and corpus must have the same numbers of tokens, got (9, 11) and {sizes}."
    with pytest.raises(ValueError, match=re.escape(words)):
        train(model, corpus, RECIPE, progress=False)
    turned = RecurrentEncoderDecoder(RecurrentConfig(sizes[0], 11, hidden=4))
    with pytest.raises(ValueError, match=re.escape(f"got {(sizes[0], 11)} and {sizes}.")):
        train(turned, corpus, RECIPE, progress=False)


def test_a_batch_of_more_pairs_than_there_are_is_refused(corpus):
    with pytest.raises(ValueError, match="batch_size must be at most 200, the pairs to train on, got 201"):
        train(model_of("transformer", corpus), corpus, Recipe(2, batch_size=201), progress=False)
    train(model_of("recurrent", corpus), corpus, Recipe(1, batch_size=200), progress=False)


@pytest.mark.parametrize("turned", [False, True])
def test_a_sentence_longer_than_max_len_is_refused_before_training_and_one_that_fits_is_not(turned, corpus):
    if turned:  # then the longest is a target
        parts = {part: [pair[::-1] for pair in getattr(corpus, part)] for part in ("train", "validation", "test")}
        tokenizers = {"source_tokenizer": corpus.target_tokenizer, "target_tokenizer": corpus.source_tokenizer}
        corpus = replace(corpus, **parts, **tokenizers)
    pairs = (*corpus.train, *corpus.validation)
    longest = max(max(len(source), len(target) + 1) for source, target in pairs)  # START is an input like the words
    words = f"max_len must be {longest}, the longest sentence, or more, got {longest - 1}."
    with pytest.raises(ValueError, match=re.escape(words)):
        train(model_of("transformer", corpus, max_len=longest - 1), corpus, Recipe(1), progress=False)
    train(model_of("transformer", corpus, max_len=longest), corpus, Recipe(1, batch_size=200), progress=False)


# ------------------------------------------------------------------ on disk


MODELS = {
    "transformer": lambda: TransformerEncoderDecoder(EncoderDecoderConfig(7, 8, 9, 8, 2, 2, 0.1)),
    "shared": lambda: TransformerEncoderDecoder(EncoderDecoderConfig(8, 8, 9, 8, 2, 2, shared=True)),
    "gru": lambda: RecurrentEncoderDecoder(RecurrentConfig(7, 8, 6, "gru", True, 0.1)),
    "lstm": lambda: RecurrentEncoderDecoder(RecurrentConfig(7, 8, 6, "lstm")),
    "without attention": lambda: RecurrentEncoderDecoder(RecurrentConfig(7, 8, 6, attention=False)),
}


@pytest.fixture(params=MODELS)
def stored(request, tmp_path) -> tuple[nn.Module, PairTokenizer, Path]:
    """Return a model, its tokenizer, and the file where they are."""
    model = MODELS[request.param]()
    tokenizer = PairTokenizer(WORDS.target, WORDS.target) if request.param == "shared" else WORDS
    save_model(tmp_path / "model.safetensors", model, tokenizer)
    return model, tokenizer, tmp_path / "model.safetensors"


def rewrite(path: Path, **entries: str) -> None:
    """Write the file again with other entries in its header."""
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        header = file.metadata() | entries
    save_file(tensors, path, metadata=header)


def test_a_model_comes_back_with_both_tokenizers(stored):
    model, tokenizer, path = stored
    again, their_tokenizer = load_model(path)
    assert type(again) is type(model)
    assert again.config == model.config
    assert their_tokenizer == tokenizer
    assert read_header(path) == (model.config, tokenizer)
    assert not again.training
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    source, target = torch.tensor([[4, 5, 6], [6, 5, PAD]]), torch.tensor([[START, 7, 4, 5], [START, 6, PAD, PAD]])
    assert torch.equal(again(source, target), model.eval()(source, target))


def test_a_shared_table_is_stored_once_and_stays_shared(tmp_path):
    model, tokenizer = MODELS["shared"](), PairTokenizer(WORDS.target, WORDS.target)
    save_model(tmp_path / "m.safetensors", model, tokenizer)
    assert not {"target_embed.weight", "unembed.weight"} & load_file(tmp_path / "m.safetensors").keys()
    again, _ = load_model(tmp_path / "m.safetensors")
    assert again.source_embed.weight is again.target_embed.weight is again.unembed.weight


def test_a_file_says_which_model_it_holds_and_one_of_another_is_refused(stored):
    model, _, path = stored
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["model"] == type(model).__name__
    rewrite(path, model="Transformer")
    words = "model must be one of TransformerLM, TransformerEncoderDecoder, RecurrentEncoderDecoder, got 'Transformer'"
    with pytest.raises(ValueError, match=words):
        load_model(path)
    rewrite(path, model="TransformerLM")
    with pytest.raises(
        ValueError, match=rf"{re.escape(str(path))} must hold a model of this course: a config must have"
    ):
        load_model(path)


def test_a_tokenizer_of_other_sizes_is_refused(stored):
    _, tokenizer, path = stored
    sizes = f"{tokenizer.source.vocab_size} and {tokenizer.target.vocab_size}"
    other = PairTokenizer(WordTokenizer((" a",)), tokenizer.target)
    rewrite(path, tokenizer=json.dumps(other.as_table()))
    with pytest.raises(ValueError, match=f"config and tokenizer must agree, got {sizes} and 5 and 8 tokens"):
        load_model(path)
    rewrite(path, tokenizer=json.dumps(CharTokenizer("abcdefg").as_table()))
    with pytest.raises(ValueError, match=f"config and tokenizer must agree, got {sizes} and 7 tokens"):
        load_model(path)


def test_weights_of_another_model_are_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    save_model(path, MODELS["gru"](), WORDS)
    config = json.dumps(vars(RecurrentConfig(7, 8, 6, "lstm")))
    rewrite(path, config=config)
    with pytest.raises(ValueError, match=r"must fit the model, which has shape .* as .*, got "):
        load_model(path)


@pytest.mark.parametrize("sides", list(itertools.product((WORDS.source, BytePairTokenizer(())), repeat=2)))
def test_both_tokenizers_come_back_whatever_their_kinds(sides):
    pair = PairTokenizer(*sides)
    assert tokenizer_from_table(json.loads(json.dumps(pair.as_table()))) == pair


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"kind": "pair", "source": WORDS.source.as_table()},
            "a table must have kind 'pair', source, target and nothing",
        ),
        (
            WORDS.as_table() | {"source": CharTokenizer("ab").as_table()},
            "both sides must be words or byte pairs, got Char",
        ),
        (WORDS.as_table() | {"target": WORDS.as_table()}, "both sides must be words or byte pairs, got PairTokenizer"),
        (WORDS.as_table() | {"target": {"kind": "words"}}, "a table must have kind 'words', words and nothing else"),
        (WORDS.as_table() | {"target": None}, "a tokenizer must be a table with a kind, one of .*, got None"),
    ],
)
def test_damaged_tables_of_both_tokenizers_are_refused(table, words):
    with pytest.raises(ValueError, match=words):
        tokenizer_from_table(table)


def test_a_model_of_the_wrong_kind_is_refused(corpus):
    language_model = TransformerLM(LMConfig(9, max_len=8, hidden=8, num_layers=1, num_heads=2))
    with pytest.raises(ValueError, match="model must translate for a corpus of pairs, got TransformerLM"):
        train(language_model, corpus, RECIPE, progress=False)
    words = "model must be a language model for a corpus of text, got TransformerEncoderDecoder"
    with pytest.raises(ValueError, match=words):
        train(model_of("transformer", corpus), load_toy(1000), RECIPE, progress=False)


def test_muon_is_refused_for_a_net_without_blocks(corpus):
    with pytest.raises(ValueError, match="optimizer must be adamw for a model without blocks, got muon for Recurrent"):
        train(model_of("recurrent", corpus), corpus, Recipe(2, batch_size=8, optimizer="muon"), progress=False)


def test_every_pair_is_trained_on_sooner_or_later_and_the_longest_are_not_left_out(corpus):
    """200 pairs make 4 batches of 48; which 8 are left over is drawn again in each epoch."""
    task = Translation(model_of("transformer", corpus), corpus, 48, 0, 0.0)
    seen = Counter()
    for step in range(4 * 12):
        source, _, _ = task.batch(step)
        seen.update(tuple(word for word in row if word != PAD) for row in source.tolist())
    assert len(seen) == 200
    assert sum(seen.values()) == 4 * 12 * 48


def test_the_longest_layer_number_counts_as_a_number():
    """Layer 10 comes after layer 9."""
    torch.manual_seed(0)
    model = TransformerEncoderDecoder(EncoderDecoderConfig(9, 11, 16, 4, 11, 2))
    source, target = torch.randint(4, 9, (2, 5)), torch.randint(4, 11, (2, 3))
    expected = record_attention(model, source, target)["decoder_blocks.10.cross_attention.weights"].mean(dim=1)
    assert torch.equal(cross_attention_map(model, source, target), expected)


@pytest.mark.parametrize("setting", ["shared", "attention"])
def test_settings_that_are_neither_true_nor_false_are_refused(setting):
    with pytest.raises(ValueError, match=f"{setting} must be True or False, got 'no'"):
        RecurrentConfig(9, 9, **{setting: "no"})
    if setting == "shared":
        with pytest.raises(ValueError, match="shared must be True or False, got 'no'"):
            EncoderDecoderConfig(9, 9, shared="no")
