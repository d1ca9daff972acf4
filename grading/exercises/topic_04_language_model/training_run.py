"""The exercise of topic 04 about a trained model, submitted as a file and measured on unseen sentences.

The recorded answers are code that writes the file into `folder`.
"""

import functools
import random
from pathlib import Path

from grading.isolation.answers import Answer
from grading.judging.record import FileRecord, Part, WrongAnswer
from transformer_lm.checks.engine.verdict import Mark
from transformer_lm.checks.topic_04_language_model.training_run import SAVE, TRAINING_RUN
from transformer_lm.modeling_lm import TransformerLM
from transformer_lm.texts.corpora import Corpus, load_toy
from transformer_lm.texts.toy_grammar import sentences
from transformer_lm.training.loop import train
from transformer_lm.training.presets import preset

LENGTH = 20_000  # characters; on another text of this length, the loss differs by about 0.005
SLACK = 0.01  # so that a model that only just passes the check is not refused here
SIZES, STEPS = {"hidden": 64, "num_layers": 2}, 400  # of the recorded training run, enough for full points


def measured(record: FileRecord, part: Part, answer: Answer, rng: random.Random) -> str | Mark:
    """Judge a model by its loss on newly drawn sentences."""
    exercise, drawn, text = record.public, sentences(random.Random(rng.getrandbits(64))), ""
    while len(text) < LENGTH:
        text += next(drawn) + "\n"
    loss = exercise.loss((answer.folder or Path()) / exercise.file, text)
    points = exercise.points(loss - SLACK)
    if points < part.points:
        return Mark(points, failure=exercise.too_high(loss).failure)
    return f"Right: {loss:.3f} nats per character on {len(text):,} characters drawn for this submission."


@functools.cache
def trained() -> tuple[TransformerLM, Corpus]:
    """Return a model that gets full points, and its training data; it is trained once in each process."""
    corpus, recipe = load_toy(), preset("default")
    model = recipe.make_model(corpus.tokenizer.vocab_size, **SIZES)
    train(model, corpus, recipe.make_recipe(steps=STEPS), progress=False)
    return model, corpus


# --- answers ------------------------------------------------------------------------------------

START = """\
import copy

from grading.exercises.topic_04_language_model.training_run import trained
from transformer_lm.training.checkpoints import save_model
from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.texts.tokenizers import ByteTokenizer, CharTokenizer

path = folder / "my_model.safetensors"
"""
MODEL_ANSWER = f"""\
{START}
model, corpus = trained()
save_model(path, model, corpus.tokenizer)
"""
REORDERED = f"""\
{START}
model, corpus = trained()
model = copy.deepcopy(model)
tokenizer = CharTokenizer({{characters}})
order = [corpus.tokenizer.encode(character)[0] if character in corpus.tokenizer.characters else 0
         for character in tokenizer.characters]
with torch.no_grad():
    embedded, unembedded = model.embed.tokens.weight[order], model.unembed.weight[order]
    {{change}}
    model = TransformerLM(LMConfig(**{{{{**vars(model.config), "vocab_size": len(order)}}}}))
    tables = {{{{"embed.tokens.weight": embedded, "unembed.weight": unembedded}}}}
    model.load_state_dict(trained()[0].state_dict() | tables)
save_model(path, model, tokenizer)
"""


def untrained(name: str, hint: str, settings: str = "hidden=8, num_layers=1", tokenizer: str = "corpus.tokenizer"):
    """Return the answer with a model that was never trained."""
    source = f"""\
{START}
_, corpus = trained()
tokenizer = {tokenizer}
save_model(path, TransformerLM(LMConfig(tokenizer.vocab_size, {settings})), tokenizer)
"""
    return WrongAnswer(name, hint, source)


def changed(name: str, hint: str, change: str) -> WrongAnswer:
    """Return the answer whose file is changed after writing."""
    return WrongAnswer(name, hint, MODEL_ANSWER + change + "\n")


TOO_HIGH = "Train longer, or take the tricks of the lesson; is it the toy grammar that it was trained on?"
ONE_FOR_ALL = "The tokenizer must tell all characters of the grammar apart: take that of load_toy()."
MANY = "A model of a million parameters is enough here."

MISBEHAVING = (
    untrained("never-trained", TOO_HIGH),
    changed(
        "weights-lost",
        TOO_HIGH,
        "model = copy.deepcopy(model)\nmodel.init_weights('torch')\nsave_model(path, model, corpus.tokenizer)",
    ),
    changed(
        "another-order-of-characters",
        TOO_HIGH,
        "save_model(path, model, CharTokenizer(corpus.tokenizer.characters[::-1]))",
    ),
    WrongAnswer("nothing-handed-in", SAVE, "pass\n"),
    changed("under-another-name", SAVE, "path.rename(folder / 'model.safetensors')"),
    changed("a-link", SAVE, "path.rename(folder / 'a')\npath.symlink_to(folder / 'a')"),
    changed("cut-short", SAVE, "path.write_bytes(path.read_bytes()[:-1000])"),
    changed("only-the-beginning", SAVE, "path.write_bytes(path.read_bytes()[:100])"),
    changed("empty", SAVE, "path.write_bytes(b'')"),
    changed("by-torch-save", SAVE, "torch.save(model.state_dict(), path)"),
    changed(
        "weights-alone",
        SAVE,
        "from safetensors.torch import save_file\nsave_file({'a': torch.zeros(3)}, path)",
    ),
    changed(
        "weights-of-another-model",
        SAVE,
        "from safetensors import safe_open\nfrom safetensors.torch import save_file\n"
        "header = safe_open(path, 'pt').metadata()\nsave_file({'embed.tokens.weight': torch.zeros(3)}, path, header)",
    ),
    changed(
        "no-numbers",
        "Its weights are no longer numbers: train it anew.",
        "model = copy.deepcopy(model)\nmodel.unembed.weight.data[0, 0] = math.nan\n"
        "save_model(path, model, corpus.tokenizer)",
    ),
    untrained("one-token-for-all", ONE_FOR_ALL, tokenizer="CharTokenizer('x', unknown=True)"),
    untrained("letters-of-its-own", SAVE, tokenizer="CharTokenizer('abc')"),
    untrained("too-long-a-context", MANY, "hidden=8, num_layers=1, max_len=100_000, positions='rotary'"),
    untrained("too-many-layers", MANY, "hidden=4, num_layers=9"),
    untrained("too-many-heads", MANY, "hidden=64, num_heads=64, num_layers=1, positions='relative'"),
    changed(
        "too-large",
        "A model of a million parameters is enough here, and has 4 MB.",
        "path.open('ab').truncate(50_000_000)",
    ),
)

RIGHT = {
    "characters-in-another-order": REORDERED.format(characters="corpus.tokenizer.characters[::-1]", change="pass"),
    "more-characters-than-needed": REORDERED.format(
        characters="corpus.tokenizer.characters + 'XYZ'", change="unembedded[-3:], embedded[-3:] = -1, 0"
    ),
    "saved-twice": MODEL_ANSWER + "save_model(path, model, corpus.tokenizer)\n",
    "in-train-mode": MODEL_ANSWER.replace("save_model(", "model.train()\nsave_model("),
}

TRAINING_RUN_RECORD = FileRecord(
    public=TRAINING_RUN,
    title="A training run",
    defines="history",
    parts=(Part("training-run-check", 4, measured, runs=False),),
    model_answer=MODEL_ANSWER,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
