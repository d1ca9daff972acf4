"""Code that readers of the original homeworks type: it works here, or an error says why not.

`docs/guides/from-the-homeworks.md` says where each of their tasks is.
"""

import gzip
import hashlib
import inspect
import io
import re
import tarfile
from dataclasses import replace

import nbformat
import pytest
import torch
from checkout import ROOT
from torch import nn

from transformer_lm import datasets
from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.texts import corpora

LM = "from transformer_lm.transformer import TransformerLM"
FUNCTIONS = (
    "from transformer_lm.attention import create_kqv_parameters, kqv, attention_scores, create_causal_mask, "
    "self_attention, self_attention_layer, multi_head_attention_layer"
)
IMDB = "(x_train, y_train), (x_val, y_val), (i2w, w2i), numcls"
SMALL = "LMConfig(11, max_len=8, hidden=12, num_layers=1, num_heads=3, tied=False, init='torch')"
WEIGHTS = """
model.k.weight.data = Values.k_weight
model.q.weight.data = Values.q_weight
model.v.weight.data = Values.v_weight
model.k.bias.data = Values.k_bias
model.q.bias.data = Values.q_bias
model.v.bias.data = Values.v_bias
"""
MIX = "model.mix.weight.data = Values.mix_weight\nmodel.mix.bias.data = Values.mix_bias\n"
MULTI = "from transformer_lm.test_values import MultiHeadAttentionTestValues as Values\n"

# Code that is typed, and what must be true after it. In all rows, x is (2, 5, 12) and scores are (2, 5, 5).
WORKS = {
    # 000, a language model from functions up
    "attention.py": (FUNCTIONS, "callable(multi_head_attention_layer)"),
    "the class of attention.py": (
        "from transformer_lm.attention import CausalSelfAttention\nsa = CausalSelfAttention(12, 3, max_len=5)(x)",
        "sa.shape == x.shape",
    ),
    "transformer.py": (
        f"{LM}, TransformerDecoderBlock, Embed\nx = Embed(11, 12, max_len=8)(tokens)",
        "x.shape == (2, 5, 12) and issubclass(TransformerDecoderBlock, nn.Module)",
    ),
    "mlp.py": ("from transformer_lm.mlp import MLP\ny = MLP(LMConfig(11, hidden=12))(x)", "y.shape == x.shape"),
    "k, q, v": (f"{FUNCTIONS}\nk, q, v = kqv(x, create_kqv_parameters(12, 4))", "k.shape == v.shape == (2, 5, 4)"),
    "a layer": (
        f"{FUNCTIONS}\nsa = self_attention_layer(x, create_kqv_parameters(12, 12), create_causal_mask(8))",
        "sa.shape == x.shape",
    ),
    "heads": (
        f"{FUNCTIONS}\nmatrices = [create_kqv_parameters(12, 4) for _ in range(3)]\n"
        "sa = multi_head_attention_layer(x, matrices, create_causal_mask(8))",
        "sa.shape == x.shape",
    ),
    "a mask with a first dimension of 1": (
        f"{FUNCTIONS}\nM = create_causal_mask(5)\nA = scores.masked_fill(M == 0, float('-inf'))",
        "M.shape == (1, 5, 5) and torch.equal(A.isinf()[0], torch.ones(5, 5).triu(1).bool())",
    ),
    "a float mask of 0 and 1": (
        f"{FUNCTIONS}\nsa = self_attention(x, scores, torch.tril(torch.ones(1, 8, 8)))",
        "torch.equal(sa, self_attention(x, scores, create_causal_mask(5)))",
    ),
    "labels": (
        "from transformer_lm.lm import batch_to_labeld_samples\ninputs, labels = batch_to_labeld_samples(tokens)",
        "torch.equal(inputs, tokens[:, :-1]) and torch.equal(labels, tokens[:, 1:])",
    ),
    "the loss": (
        "from transformer_lm.lm import compute_loss\nloss = compute_loss(TransformerLM(small)(tokens), tokens)",
        "loss.shape == () and loss > 0",
    ),
    "initialisation": (
        f"{LM}\nmodel = TransformerLM(small)\nnn.init.zeros_(model.embed.tokens.weight)\nmodel.init_weights()",
        "model.embed.tokens.weight.std() > 0.5",  # that of torch's embeddings is 1, of GPT-2's 0.02
    ),
    "a sample": ("more = TransformerLM(small).sample_continuation([1, 2], 5)", "len(more) == 5"),
    "a better sample": (
        "more = TransformerLM(small).better_sample_continuation([1, 2], 5, temperature=0.7, top_k=5)",
        "len(more) == 5",
    ),
    # 001, classification and autoregression
    "XOR": (
        f"from transformer_lm.datasets import load_xor\n{IMDB} = load_xor(final=False)",
        "(len(x_train), len(x_val), numcls) == (400, 100, 2) and load_xor(final=True)[0] == (x_train, y_train)",
    ),
    "IMDb-synth": (
        f"from transformer_lm.datasets import load_imdb_synth\n{IMDB} = load_imdb_synth(final=False)",
        "[i2w[w] for w in x_train[141]][0] == 'this' and i2w[w2i['film']] == 'film' and w2i['.pad'] == 0",
    ),
    "a padded batch": (
        "from transformer_lm.datasets import load_xor\nx_train = load_xor(final=False)[0][0]\n"
        "batch = torch.tensor(x_train[:3], dtype=torch.long)",
        "batch.shape == (3, 2)",
    ),
    "the toy grammar": (
        "from transformer_lm.datasets import load_toy\n(train, test), (i2c, c2i) = load_toy(n=150_000)",
        "(len(train), len(test), len(i2c)) == (150_000, 15_000, 25) and train.dtype == torch.long",
    ),
    "characters and their numbers": (
        "from transformer_lm.texts.corpora import load_toy\n(train, test), (i2c, c2i) = load_toy(n=1000)\n"
        "text = ''.join(i2c[t] for t in train)",
        "[c2i[c] for c in text] == train.tolist() and text == load_toy(n=1000).tokenizer.decode(train)",
    ),
    "slices of the toy text": (
        "from transformer_lm.texts.corpora import load_toy\nfrom transformer_lm.lm import random_slices\n"
        "(train, test), (i2c, c2i) = load_toy(n=1000)\nx = random_slices(train, 4, 9)",
        "x[:, :-1].shape == x[:, 1:].shape == (4, 8)",
    ),
    "a corpus keeps its names": (
        "from transformer_lm.texts.corpora import load_toy\ncorpus = load_toy(n=1000)\n(train, test), _ = corpus",
        "train is corpus.train and test is corpus.validation and len(corpus.test) == 100",
    ),
    "the mask by triu_indices": (
        "i, j = torch.triu_indices(5, 5, offset=1)\nscores[..., i, j] = float('-inf')",
        "torch.equal(scores.isinf()[1], torch.ones(5, 5).triu(1).bool())",
    ),
    "sampling by its logits": (
        "import torch.distributions as dist\nlogits = TransformerLM(small)(tokens)[0, -1]\n"
        "token = dist.Categorical(torch.softmax(logits / 0.7, dim=0)).sample()",
        "logits.shape == (11,) and token < 11",
    ),
    # 002, attention with frozen values; the sizes are ours, see the refused ones
    "one head": (
        "from transformer_lm.modeling_attention import SelfAttention\n"
        "from transformer_lm.test_values import SelfAttentionTestValues as Values\n"
        f"model = SelfAttention(input_size=7, hidden=11){WEIGHTS}output = model(Values.x)",
        "output.shape == (2, 5, 11) and torch.allclose(output, Values.output, atol=1e-6)",
    ),
    "several heads": (
        f"from transformer_lm.modeling_attention import MultiHeadSelfAttention\n{MULTI}"
        f"model = MultiHeadSelfAttention(input_size=11, hidden=15, num_heads=3){WEIGHTS}{MIX}output = model(Values.x)",
        "torch.allclose(output, Values.output, atol=1e-6)",
    ),
    "several heads with a causal mask": (
        f"from transformer_lm.modeling_attention import MultiHeadSelfAttention\n{MULTI}"
        f"model = MultiHeadSelfAttention(input_size=11, hidden=15, num_heads=3, causal=True){WEIGHTS}{MIX}"
        "output = model(Values.x)",
        "torch.allclose(output, Values.output_causal, atol=1e-6)",
    ),
    "attention to look at": (
        "from transformer_lm.modeling_attention import MultiHeadSelfAttention\n"
        "model = MultiHeadSelfAttention(input_size=11, hidden=15, num_heads=3, causal=True, dropout=0)\n"
        "att, probs = model(torch.randn(3, 7, 11), return_attention=True)",
        "att.shape == (3, 7, 15) and probs.shape == (9, 7, 7) and probs[6].triu(1).sum() == 0",
    ),
    # 003 and 004, lectures
    "the mask of a decoder": (
        f"{FUNCTIONS}\nmask = torch.tril(torch.ones(8, 8))\n"
        "weights = scores.masked_fill(mask[..., :5, :5] == 0, float('-inf')).softmax(-1)",
        "torch.allclose(weights @ x, self_attention(x, scores, create_causal_mask(8)))",
    ),
    "NLL of log-probabilities": (
        "from transformer_lm.lm import compute_loss\noutput = TransformerLM(small)(tokens)\n"
        "nll = nn.NLLLoss()(output.log_softmax(2).view(-1, 11), tokens.reshape(-1))",
        "torch.allclose(nll, compute_loss(output, tokens))",
    ),
}

# Code that is typed, the error, and words that say what to do instead.
REFUSED = {
    "a mask that is added": (
        f"{FUNCTIONS}\nself_attention(x, scores, torch.zeros(1, 5, 5).masked_fill(torch.eye(5) == 0, float('-inf')))",
        ValueError,
        "visible must hold True or 1 where a key is visible, and False or 0 elsewhere, got -inf. "
        "If your mask is added to the scores, pass mask == 0.",
    ),
    "a mask without a batch": (
        f"{FUNCTIONS}\nself_attention(x, scores, torch.tril(torch.ones(5, 5)))",
        ValueError,
        "visible must have the axes (1 or 2, at least 5, at least 5) for scores (b=2, i=5, j=5), got (5, 5).",
    ),
    "a name of their functions": (
        f"{FUNCTIONS}\nself_attention(x, scores, mask=None)",
        TypeError,
        "got an unexpected keyword argument 'mask'",
    ),
    "topK": (
        "TransformerLM(small).better_sample_continuation([1, 2], 5, topK=5)",
        TypeError,
        "topK is called top_k here: pass top_k=5.",
    ),
    "heads that do not divide the width": (
        "from transformer_lm.modeling_attention import MultiHeadSelfAttention\nMultiHeadSelfAttention(7, 9, 2)",
        ValueError,
        "num_heads must divide hidden, got num_heads=2 and hidden=9.",
    ),
    "test values with the sizes of the notebook": (
        f"from transformer_lm.modeling_attention import MultiHeadSelfAttention\n{MULTI}"
        f"model = MultiHeadSelfAttention(input_size=7, hidden=9, num_heads=3){WEIGHTS}{MIX}model(Values.x)",
        ValueError,
        "x must end in an axis of input_size=7, got x (b=2, n=7, d=11).",
    ),
    "a test value that is not there": (
        f"{MULTI}Values.u_weight",
        AttributeError,
        "the frozen values of multi-head-attention are ",
    ),
    "another scheme of initialisation": (
        "TransformerLM(small).init_weights('xavier')",
        ValueError,
        "scheme must be one of torch, gpt2, zero_output, got 'xavier'.",
    ),
    "another name in attention.py": (
        "from transformer_lm.attention import CausalAttention",
        ImportError,
        "cannot import name 'CausalAttention'",
    ),
}


@pytest.fixture
def typed() -> dict:
    """Return the names that all rows may use."""
    torch.manual_seed(0)
    return {
        "torch": torch,
        "nn": nn,
        "LMConfig": LMConfig,
        "TransformerLM": TransformerLM,
        "small": eval(SMALL),
        "x": torch.randn(2, 5, 12),
        "scores": torch.randn(2, 5, 5),
        "tokens": torch.randint(11, (2, 5)),
    }


@pytest.mark.parametrize("row", WORKS)
def test_what_the_homeworks_type_works(row, typed):
    code, holds = WORKS[row]
    exec(code, typed)
    assert eval(holds, typed), holds


@pytest.mark.parametrize("row", REFUSED)
def test_what_does_not_work_says_why(row, typed):
    code, error, words = REFUSED[row]
    with pytest.raises(error, match=re.escape(words)):
        exec(code, typed)


def test_film_reviews_unpack_as_typed(imdb, typed):
    typed["load_imdb"] = lambda final: imdb  # they are slow to load, and loaded once for all tests
    exec(f"{IMDB} = load_imdb(final=False)\nwords = [i2w[w] for w in x_train[141]]", typed)
    assert (len(typed["x_train"]), len(typed["x_val"]), typed["numcls"]) == (20_000, 5_000, 2)
    assert typed["words"]
    assert typed["i2w"][typed["w2i"]["film"]] == "film"
    assert "final" in inspect.signature(datasets.load_imdb).parameters


def test_wikipedia_unpacks_as_typed(typed, tmp_path, monkeypatch):
    content = bytes(range(256)) * 4 + "Größe".encode()
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            packed = gzip.compress(content)
            member = tarfile.TarInfo(corpora.WIKIPEDIA_MEMBER)
            member.size = len(packed)
            archive.addfile(member, io.BytesIO(packed))
        archived = buffer.getvalue()
    monkeypatch.setenv("TRANSFORMER_LM_DATA", str(tmp_path))
    there = replace(corpora.WIKIPEDIA_PACKAGE, sha256=hashlib.sha256(archived).hexdigest(), size=len(archived))
    monkeypatch.setattr(corpora, "WIKIPEDIA_PACKAGE", there)
    there.path.write_bytes(archived)

    exec("from transformer_lm.datasets import load_wp\n(train, val), (i2t, t2i) = load_wp()", typed)
    assert bytes(typed["train"].tolist()) == content[: len(content) * 90 // 100]
    assert len(typed["i2t"]) == len(typed["t2i"]) == 256
    assert "".join(typed["i2t"][token] for token in typed["train"][65:70]) == "ABCDE"
    assert all(typed["t2i"][character] == token for token, character in enumerate(typed["i2t"]))


@pytest.mark.parametrize("load", ["load_wp", "load_imdb"])
def test_data_that_is_not_there_says_how_to_get_it(load, typed, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_LM_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"Any one of these will do:\n- .* and put the file at "):
        exec(f"from transformer_lm.datasets import {load}\n{load}(download=False)", typed)


# ------------------------------------------------------------------ the cells that show test values, and the guide

GUIDE = ROOT / "docs" / "guides" / "from-the-homeworks.md"
HERE = re.compile(r"\[assignment (\d\d)\]\[a(\d\d)\], (exercise|R|Q|question )\s?(\d+)$")


@pytest.mark.parametrize(
    ("topic", "needed"),
    [
        ("01_self_attention", ("attention-scores", "self-attention")),
        ("02_multi_head_attention", ("multi-head-attention",)),
    ],
)
def test_a_cell_shows_the_numbers_that_the_check_uses(topic, needed, typed, capsys):
    notebook = nbformat.read(ROOT / "source" / topic / f"{topic}.ipynb", as_version=4)
    cells = {cell.id: cell.source for cell in notebook.cells}
    for name in ("setup", *needed, f"{needed[-1]}-test-values"):
        exec(cells[name], typed)
    out = capsys.readouterr().out
    assert "'x': (2, " in out
    expected, yours = re.split("yours: *", out.partition("expected")[2].partition(":")[2])
    assert expected.split("tensor")[1].split() == yours.split("tensor")[1].split()
    released = nbformat.read(ROOT / "release" / topic / f"{topic}.ipynb", as_version=4)
    assert cells[f"{needed[-1]}-test-values"] in [cell.source for cell in released.cells]


def tables() -> list[list[dict[str, str]]]:
    """Return the rows of each table of the guide, by the names of their columns."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", GUIDE.read_text(), re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in block.splitlines()]
        found.append([dict(zip(map(str.strip, head), row, strict=True)) for row in rows])
    return found


def test_the_guide_has_every_task_and_question():
    functions, questions, notebook, slides, notes = tables()
    assert [row["there"].split(",")[0] for row in questions] == [*(f"Q{n}" for n in range(1, 15)), "Wikipedia"]
    points = [0.5, 0.5, 1, 1, 0.5, 1, 0.5, 0.5, 1, 0.5, 1, 1, 0.5, 0.5]
    assert [float(row["points there"]) for row in questions[:14]] == points
    assert sum(points) == 10
    tasks = {row["there"].split(",")[0]: row["points there"] for row in notebook}
    assert {name: tasks[f"Task {name}"] for name in ("1.1", "1.2", "2.1", "2.2", "2.3")} == dict(
        zip(("1.1", "1.2", "2.1", "2.2", "2.3"), "13312", strict=True)
    )
    assert {f"Q{n}" for n in range(1, 6)} <= tasks.keys()
    parts = [row["there"].split(",")[0] for row in functions]
    assert set(parts) == {*(f"part {n}" for n in range(1, 6)), "report", "what next"}
    assert parts.count("report") == 6
    assert len(slides) >= 9
    assert len(notes) >= 11
    assert all(row["what differs, and why"] for table in tables() for row in table)


def test_points_of_the_guide_are_those_of_the_assignments():
    compared, in_parts = 0, {}
    for table in tables():
        for row in table:
            found = HERE.search(row["here"])
            if found is None or not row["points here"].isdecimal():
                continue
            number, same, kind, which = found.groups()
            assert number == same
            (path,) = (ROOT / "release").glob(f"{number}_*/*.ipynb")
            text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
            label = {"exercise": "Exercise ", "question ": "Question "}.get(kind, kind)
            points = re.search(rf"^(?:## |\*\*){label}{which}\b[^\n]*?\((\d+) points?[,)]", text, re.MULTILINE)
            assert points, row
            if row["there"].startswith("Task "):
                in_parts.setdefault((number, which, int(points[1])), []).append(int(row["points here"]))
            else:
                assert row["points here"] == points[1], row
            compared += 1
    assert compared > 50
    assert {whole: sum(parts) for (_, _, whole), parts in in_parts.items()} == {4: 4, 6: 6}


def test_every_link_of_the_guide_leads_somewhere():
    text = GUIDE.read_text()
    defined = dict(re.findall(r"^\[(\w+)\]: (\S+)$", text, re.MULTILINE))
    assert {name for _, name in re.findall(r"\[([^\]]+)\]\[(\w+)\]", text)} == defined.keys()
    links = [*defined.values(), *re.findall(r"\]\((\S+)\)", text)]
    assert [link for link in links if not (GUIDE.parent / link).is_file()] == []
    files = re.findall(r"`((?:transformer_lm|tests)/\w+\.py)`", text)
    assert files
    assert [name for name in files if not (ROOT / name).is_file()] == []
