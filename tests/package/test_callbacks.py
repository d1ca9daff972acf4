"""Callbacks of a run: printed lines, a figure in a real notebook, files that TensorBoard's own reader reads."""

import re
import sys

import matplotlib
import matplotlib.pyplot as plt
import nbformat
import pytest
import torch
from nbclient import NotebookClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.plots.training import curves
from transformer_lm.sampling import continuation
from transformer_lm.texts.corpora import Corpus, load_toy
from transformer_lm.training.callbacks import PROMPT, PrintedReport, TensorBoard, sample_of, validation_prompt
from transformer_lm.training.loop import History, Recipe, train

matplotlib.use("agg")
HISTORY = History([3.0, 2.5, 2.0], [1.5, 0.5, 0.25], [0.1, 0.2, 0.15], [(1, 2.9), (3, 2.4)])
TRAIN = """
from transformer_lm.texts.corpora import load_toy
from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.plots.training import LiveCurves
from transformer_lm.training.loop import Recipe, train

corpus = load_toy(n=500)
model = TransformerLM(LMConfig(corpus.tokenizer.vocab_size, 6, hidden=4, num_layers=1, num_heads=2))
history = train(model, corpus, Recipe(7, 2), reports=[LiveCurves(every=3)], progress=False)
"""
AGAIN = """
from transformer_lm.plots.pictures import show
from transformer_lm.plots.training import curves

show(curves(history), "once more")
"""
OPEN = """
import matplotlib.pyplot as plt

len(plt.get_fignums())
"""


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_toy(n=2000)


@pytest.fixture
def model(corpus) -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(LMConfig(corpus.tokenizer.vocab_size, 24, hidden=4, num_layers=1, num_heads=2))


def step_of(number: int) -> History:
    """Return the history of a run with this many steps."""
    return History([1 / step for step in range(1, number + 1)], [0.5] * number, [0.1] * number)


# ------------------------------------------------------------------ printed


def test_the_loss_is_printed_every_10_steps_and_a_sample_every_100(model, corpus, capsys):
    report, printed = PrintedReport(corpus), []
    for step in range(1, 201):
        report(model, step_of(step))
        printed.append(capsys.readouterr().out)
    assert [step for step, text in enumerate(printed, 1) if text] == list(range(10, 201, 10))
    assert printed[29] == "step 30: loss 0.033\n"
    assert printed[99] == f"step 100: loss 0.010\n{sample_of(model, corpus, 100, seed=100, top_k=5)}\n"
    samples = [step for step, text in enumerate(printed, 1) if "|" in text]
    assert samples == [100, 200]
    assert printed[99].partition("\n")[2] != printed[199].partition("\n")[2]


def test_a_report_prints_as_often_as_it_is_told(model, corpus, capsys):
    report = PrintedReport(corpus, loss_every=2, sample_every=3, num_tokens=4)
    for step in range(1, 5):
        report(model, step_of(step))
    out = capsys.readouterr().out
    assert re.findall(r"step (\d+): loss", out) == ["2", "4"]
    assert out.count("|") == 1


def test_a_sample_is_16_tokens_of_validation_text_and_how_the_model_continues_them(model, corpus):
    text = corpus.tokenizer.decode(corpus.validation)
    prompt = validation_prompt(corpus, seed=3)
    given, _, written = sample_of(model, corpus, 30, seed=3).partition("|")
    assert len(given) == PROMPT == 16
    assert given in text
    assert written == corpus.tokenizer.decode(continuation(model, prompt, 30, seed=3)[0])
    assert len({sample_of(model, corpus, 5, seed=seed).partition("|")[0] for seed in range(5)}) > 1


def test_a_text_shorter_than_a_prompt_is_one(model, corpus):
    short = Corpus("short", corpus.train, corpus.validation[:9], corpus.test, corpus.tokenizer)
    assert sample_of(model, short, 0) == f"{corpus.tokenizer.decode(corpus.validation[:9])}|"


# ------------------------------------------------------------------ drawn


def test_curves_show_the_numbers_of_the_history():
    figure = curves(HISTORY)
    loss, norm, rate = figure.axes
    training, validation = loss.lines
    assert training.get_xydata().tolist() == [[1, 3], [2, 2.5], [3, 2]]
    assert validation.get_xydata().tolist() == [[1, 2.9], [3, 2.4]]
    assert norm.lines[0].get_xydata().tolist() == [[1, 1.5], [2, 0.5], [3, 0.25]]
    assert rate.lines[0].get_xydata().tolist() == [[1, 0.1], [2, 0.2], [3, 0.15]]
    assert norm.get_yscale() == "log"
    assert [axis.get_xlabel() for axis in figure.axes] == ["step"] * 3
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "loss (nats per token)",
        "gradient norm before clipping",
        "learning rate",
    ]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["training, one batch", "validation"]
    plt.close(figure)


def test_curves_without_validation_have_one_line_of_loss():
    figure = curves(step_of(4))
    assert len(figure.axes[0].lines) == 1
    plt.close(figure)


def test_a_notebook_is_left_with_one_drawing_and_it_is_the_last(tmp_path):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in (TRAIN, OPEN, AGAIN)]
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    (drawing,) = notebook.cells[0].outputs
    assert drawing.output_type == "display_data"
    (expected,) = notebook.cells[2].outputs
    assert drawing.data["image/png"] == expected.data["image/png"]
    assert 'alt="Loss, gradient norm and learning rate of 7 steps' in drawing.data["text/html"]
    assert notebook.cells[1].outputs[0].data["text/plain"] == "0"  # no figure stays open


# ------------------------------------------------------------------ for TensorBoard


def test_tensorboard_reads_back_what_happened(tmp_path, model, corpus):
    recipe = Recipe(5, batch_size=2)
    history = train(model, corpus, recipe, evaluate_every=2, reports=[TensorBoard(tmp_path / "events")], progress=False)
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["gradient_norm", "learning_rate", "loss", "validation_loss"]
    for name in ("loss", "gradient_norm", "learning_rate"):
        scalars = events.Scalars(name)
        assert [scalar.step for scalar in scalars] == [1, 2, 3, 4, 5]
        assert [scalar.value for scalar in scalars] == pytest.approx(getattr(history, name))
    measured = [(scalar.step, scalar.value) for scalar in events.Scalars("validation_loss")]
    assert [step for step, _ in measured] == [2, 4, 5]
    assert [loss for _, loss in measured] == pytest.approx([loss for _, loss in history.validation])


def test_without_its_package_tensorboard_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"tensorboard is not installed\. Install it with: pip install tensorboard"):
        TensorBoard(tmp_path)
