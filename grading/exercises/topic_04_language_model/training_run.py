"""The exercise of topic 04 about a trained model, submitted as a file and measured on unseen sentences.

The recorded answers are code that writes the file into `folder`.
"""

import functools
import random
from pathlib import Path

from grading.isolation.answers import Answer
from grading.judging.record import FileRecord, Part, WrongAnswer
from transformer_lm.checks.engine.verdict import Mark
from transformer_lm.checks.topic_04_language_model.training_run import TRAINING_RUN
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
    drawn, text = sentences(random.Random(rng.getrandbits(64))), ""
    while len(text) < LENGTH:
        text += next(drawn) + "\n"
    loss = TRAINING_RUN.loss((answer.folder or Path()) / TRAINING_RUN.file, text)
    points = TRAINING_RUN.points(loss - SLACK)
    if points < part.points:
        return Mark(points, failure=TRAINING_RUN.too_high(loss).failure)
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


def untrained(name: str, settings: str = "hidden=8, num_layers=1", tokenizer: str = "corpus.tokenizer", hint: str = ""):
    """Return the answer with a model that was never trained."""
    source = f"""\
{START}
_, corpus = trained()
tokenizer = {tokenizer}
save_model(path, TransformerLM(LMConfig(tokenizer.vocab_size, {settings})), tokenizer)
"""
    return WrongAnswer(name, source, hint=hint)


def changed(name: str, change: str, hint: str = "") -> WrongAnswer:
    """Return the answer whose file is changed after writing."""
    return WrongAnswer(name, MODEL_ANSWER + change + "\n", hint=hint)


MISBEHAVING = (
    untrained("never-trained"),
    changed(
        "weights-lost",
        "model = copy.deepcopy(model)\nmodel.init_weights('torch')\nsave_model(path, model, corpus.tokenizer)",
        hint="never-trained",
    ),
    changed(
        "another-order-of-characters",
        "save_model(path, model, CharTokenizer(corpus.tokenizer.characters[::-1]))",
        hint="never-trained",
    ),
    WrongAnswer("nothing-handed-in", "pass\n", hint="no-file"),
    changed("under-another-name", "path.rename(folder / 'model.safetensors')", hint="no-file"),
    changed("a-link", "path.rename(folder / 'a')\npath.symlink_to(folder / 'a')", hint="no-file"),
    changed("cut-short", "path.write_bytes(path.read_bytes()[:-1000])", hint="no-file"),
    changed("only-the-beginning", "path.write_bytes(path.read_bytes()[:100])", hint="no-file"),
    changed("empty", "path.write_bytes(b'')", hint="no-file"),
    changed("by-torch-save", "torch.save(model.state_dict(), path)", hint="no-file"),
    changed(
        "weights-alone",
        "from safetensors.torch import save_file\nsave_file({'a': torch.zeros(3)}, path)",
        hint="no-file",
    ),
    changed(
        "weights-of-another-model",
        "from safetensors import safe_open\nfrom safetensors.torch import save_file\n"
        "header = safe_open(path, 'pt').metadata()\nsave_file({'embed.tokens.weight': torch.zeros(3)}, path, header)",
        hint="no-file",
    ),
    changed(
        "no-numbers",
        "model = copy.deepcopy(model)\nmodel.unembed.weight.data[0, 0] = math.nan\n"
        "save_model(path, model, corpus.tokenizer)",
    ),
    untrained("one-token-for-all", tokenizer="CharTokenizer('x', unknown=True)"),
    untrained("letters-of-its-own", tokenizer="CharTokenizer('abc')", hint="no-file"),
    untrained("too-long-a-context", "hidden=8, num_layers=1, max_len=100_000, positions='rotary'"),
    untrained("too-many-layers", "hidden=4, num_layers=9", hint="too-long-a-context"),
    untrained(
        "too-many-heads", "hidden=64, num_heads=64, num_layers=1, positions='relative'", hint="too-long-a-context"
    ),
    changed("too-large", "path.open('ab').truncate(50_000_000)"),
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
