"""A GPU is used if there is one: the notebooks run on a simulated accelerator, and leave no layer on the CPU.

Lessons and solved assignments run here cell by cell, with short trainings: it matters where they train, not how well.
"""

import contextlib
import io
import re
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest
import torch
from checkout import ROOT
from needed_data import skip_without
from pretend_accelerator import ACCELERATOR, PretendAccelerator, is_there
from torch import nn

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb")) + sorted((ROOT / "source").rglob("*.ipynb"))
# By folder, topic and cell: a pattern, and what is written in its place for a short training or a short text.
SHORTER = {
    ("notebooks", "03", "pool-look"): (r'"epochs": \d+', '"epochs": 1'),
    ("notebooks", "03", "attention-train"): (r'"epochs": \d+', '"epochs": 1'),
    ("notebooks", "03", "grid-run"): (r"range\(5\)", "range(1)"),
    ("notebooks", "04", "plain-implement"): ("steps=100, warmup=20", "steps=2"),
    ("notebooks", "04", "modern-implement"): ("100", "5"),
    ("notebooks", "04", "sampling-texts"): ("110", "3"),
    ("notebooks", "04", "cache-look"): (", 300,", ", 3,"),
    ("notebooks", "04", "position-look"): ("2048", "64"),
    ("notebooks", "05", "birth-train"): ("steps=300", "steps=40"),
    ("notebooks", "06", "train"): (r"\b480\b|\b300\b", "4"),
    ("notebooks", "06", "look-share"): (r"corpus\.test(\[:300\])?", "corpus.test[:4]"),
    ("source", "03", "q1-experiment"): (r"range\(5\)", "range(1)"),
    ("source", "03", "simple-experiment-run"): (r"range\(5\)", "range(1)"),
    ("source", "03", "position-embedding-look-code"): (r'"epochs": \d+', '"epochs": 1'),
    ("source", "04", "language-model-look-code"): ("600", "2"),
    ("source", "04", "last-position-bits-look-code"): ("100", "2"),
    ("source", "04", "sampling-look-code"): ("120", "3"),
    ("source", "04", "training-run"): ("240", "2"),
    ("source", "04", "training-run-look-code"): ("200", "3"),
    ("source", "06", "translator-train"): ("300", "2"),
    ("source", "06", "translator-map"): (" if is_right", ""),  # as if every sentence were exact
    ("source", "06", "beam-look"): (":20", ":2"),
    ("source", "06", "bottleneck-look"): (":60", ":4"),
}
ABOUT_QUALITY = ("-claims", "grid-check")  # of the training that is cut short


@pytest.fixture
def accelerator(monkeypatch, tmp_path):
    """A simulated accelerator that `best_device` finds, in a folder where notebooks may write."""
    monkeypatch.setattr("transformer_lm.device._fastest_present", lambda: ACCELERATOR)
    monkeypatch.setattr("transformer_lm.device.accelerator_fault", lambda device: None)
    monkeypatch.setattr("transformer_lm.plots.pictures.show", lambda *args, **kwargs: plt.close("all"))
    monkeypatch.delenv("TRANSFORMER_LM_DEVICE", raising=False)
    for results in (ROOT / "notebooks").glob("*.json"):
        (tmp_path / results.name).write_bytes(results.read_bytes())
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]), PretendAccelerator() as accelerator:
        yield accelerator
    torch.set_printoptions(profile="default")
    plt.close("all")


def code(notebook: Path) -> dict[str, str]:
    """Return the code cells of a notebook by their ids, with short trainings and without checks of answers."""
    found = {}
    for cell in nbformat.read(notebook, as_version=4).cells:
        given = cell.cell_type == "code" and not cell.source.startswith(("checks.", "hand_in.", "mine.save"))
        if given and not cell.id.endswith(ABOUT_QUALITY):
            found[cell.id] = shortened(cell.source, notebook.relative_to(ROOT).parts[0], notebook.name[:2], cell.id)
    return found


def shortened(source: str, *place: str) -> str:
    """Return a cell as it is run here; the text to be shortened must be in it."""
    pattern, short = SHORTER.get(place, ("", ""))
    if not pattern:
        return source
    changed, count = re.subn(pattern, short, source)
    assert count, f"{' '.join(place)}: {pattern} is not there any more"
    return changed


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: f"{path.relative_to(ROOT).parts[0]}-{path.stem}")
def test_every_layer_of_a_notebook_computes_on_the_device_that_best_device_finds(notebook, accelerator):
    cells, namespace = code(notebook), {}
    if notebook.parent.name == "notebooks" and any("load_shakespeare()" in source for source in cells.values()):
        skip_without("shakespeare")
    for name, source in cells.items():
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(source, f"{notebook.name}, cell {name}", "exec"), namespace)
        if name == "setup":
            assert namespace["device"] == ACCELERATOR
        assert accelerator.strays == [], f"cell {name} computes with parameters that are on the CPU"
    assert accelerator.computed


def test_the_accelerator_computes_the_same_numbers_as_the_cpu():
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    expected = layer(x)
    with PretendAccelerator() as accelerator:
        found = layer.to(ACCELERATOR)(x.to(ACCELERATOR))
        assert found.device == layer.weight.device == ACCELERATOR
        found.sum().backward()
        assert layer.weight.grad.device == ACCELERATOR
        assert found.cpu().device == torch.device("cpu")
    assert torch.equal(found, expected)
    assert accelerator.computed == 1


@pytest.mark.parametrize(
    "mistake",
    [
        lambda here, there: here + there,
        lambda here, there: torch.cat([here, there]),
        lambda here, there: nn.Linear(3, 2).to(ACCELERATOR)(here),
        lambda here, there: here[there.long()],
        lambda here, there: there.numpy(),
        lambda here, there: plt.plot(there),
        lambda here, there: torch.randn(3, generator=torch.Generator(), device=ACCELERATOR),
        lambda here, there: torch.multinomial(there, 1, generator=torch.Generator()),
    ],
)
def test_what_a_real_accelerator_refuses_is_refused(mistake):
    with PretendAccelerator():
        here, there = torch.ones(3), torch.ones(3, device=ACCELERATOR)
        with pytest.raises((RuntimeError, TypeError), match=r"accelerator|same device"):
            mistake(here, there)
    plt.close("all")


def test_a_layer_that_stays_on_the_cpu_is_found():
    with PretendAccelerator() as accelerator:
        nn.Linear(3, 2)(torch.ones(1, 3))
        nn.Linear(3, 2).to(ACCELERATOR)(torch.ones(1, 3, device=ACCELERATOR))
    assert accelerator.strays == ["linear", "linear"]  # its weight and its bias
    assert accelerator.computed == 1


def test_views_and_copies_are_where_their_tensor_is():
    with PretendAccelerator():
        there = torch.ones(2, 3).to(ACCELERATOR)
        empty = torch.cat([torch.empty(0, 3, device=ACCELERATOR)] * 2)
        for other in (there[0], there.T, there.detach(), there.clone(), there.double(), torch.zeros_like(there), empty):
            assert is_there(other)
        assert torch.ones(2, dtype=torch.long).to(there).dtype == there.dtype
        assert not is_there(there.cpu())
        assert not is_there(torch.ones(3).copy_(there[0]))
