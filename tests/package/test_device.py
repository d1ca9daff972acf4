import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import transformer_lm
from transformer_lm import best_device, device
from transformer_lm.device import VARIABLE, accelerator_fault

CPU = torch.device("cpu")
MARKED = torch.device("cpu:0")  # another device than "cpu" to ==, and present on every machine
BLANK = torch.device("meta")  # has shapes but computes no numbers: an accelerator that does not work

ABSENT = [f"cuda:{torch.cuda.device_count()}", "cpu:1"]
ABSENT += [] if torch.cuda.is_available() else ["cuda"]
ABSENT += [] if torch.backends.mps.is_available() else ["mps"]


@pytest.fixture(autouse=True)
def no_override(monkeypatch):
    """Start each test without the variable, without results of earlier self-tests, and leave none."""
    monkeypatch.delenv(VARIABLE, raising=False)
    accelerator_fault.cache_clear()
    yield
    accelerator_fault.cache_clear()


@pytest.fixture
def fastest_is(monkeypatch):
    return lambda fastest: monkeypatch.setattr(device, "_fastest_present", lambda: fastest)


@pytest.fixture
def self_test_errs_by(monkeypatch):
    """Let every device but the CPU compute on the CPU, with errors added to its loss and its gradient."""
    real = device._loss_with_gradients

    def arrange(*errors):
        def results(where):
            exact = real(CPU)
            return exact if where == CPU else tuple(map(torch.add, exact, torch.tensor(errors)))

        monkeypatch.setattr(device, "_loss_with_gradients", results)

    return arrange


# ---------------------------------------------------------------- chooses


def test_best_device_is_the_fastest_one_whose_numbers_are_right():
    fastest = device._fastest_present()
    with warnings.catch_warnings(record=True):
        assert best_device() == (fastest if accelerator_fault(fastest) is None else CPU)


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_fastest_device_is_cuda_then_mps_then_the_cpu(cuda, mps, expected, monkeypatch, self_test_errs_by):
    self_test_errs_by(0.0, 0.0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert best_device() == torch.device(expected)


@pytest.mark.parametrize("wanted", ["cpu", CPU])
def test_argument_overrides_the_choice(wanted, fastest_is):
    fastest_is(MARKED)
    assert best_device() == MARKED
    assert best_device(wanted) == CPU


def test_environment_variable_overrides_the_choice(fastest_is, monkeypatch):
    fastest_is(MARKED)
    monkeypatch.setenv("TRANSFORMER_LM_DEVICE", "cpu")
    assert best_device() == CPU


def test_argument_beats_the_environment_variable(monkeypatch):
    monkeypatch.setenv("TRANSFORMER_LM_DEVICE", "abacus")
    assert best_device("cpu") == CPU


def test_empty_environment_variable_is_no_override(fastest_is, monkeypatch):
    fastest_is(MARKED)
    monkeypatch.setenv("TRANSFORMER_LM_DEVICE", "")
    assert best_device() == MARKED


# ---------------------------------------------------------------- tests an accelerator before it is used


def test_self_test_of_the_cpu_finds_no_fault_in_real_numbers():
    assert accelerator_fault(CPU) is None
    loss, gradient = device._loss_with_gradients(CPU)
    assert 0 < loss < 10
    assert gradient.isfinite().all()
    assert (gradient != 0).all()


def assert_falls_back_with_words(words, *wanted):
    with pytest.warns(RuntimeWarning, match=words) as warned:
        assert best_device(*wanted) == CPU
    assert warned[0].filename == __file__  # the warning points at the caller


def test_device_that_cannot_compute_is_replaced_by_the_cpu(fastest_is):
    fastest_is(BLANK)
    assert_falls_back_with_words("meta is not used, the CPU is: its self-test stopped with \\w+Error: .+")


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ((0.1, 0.0), "the loss of its self-test differs from the CPU's by 0.1"),
        ((0.0, 0.1), "the gradient of its self-test differs from the CPU's by 0.1"),
        ((0.0, -0.1), "the gradient of its self-test differs from the CPU's by 0.1"),
        ((torch.nan, 0.0), "the loss of its self-test differs from the CPU's by nan"),
        ((0.0, torch.nan), "the gradient of its self-test differs from the CPU's by nan"),
    ],
)
def test_device_with_wrong_numbers_is_replaced_by_the_cpu(errors, words, fastest_is, self_test_errs_by):
    fastest_is(BLANK)
    self_test_errs_by(*errors)
    assert_falls_back_with_words(f"meta is not used, the CPU is: {words}")


def test_device_that_only_rounds_differently_is_used(fastest_is, self_test_errs_by, recwarn):
    fastest_is(BLANK)
    self_test_errs_by(1e-5, 1e-5)
    assert best_device() == BLANK
    assert not recwarn


@pytest.mark.parametrize("by", ["argument", "environment variable"])
def test_device_asked_for_is_tested_too(by, self_test_errs_by, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    self_test_errs_by(0.0, 0.1)
    if by == "environment variable":
        monkeypatch.setenv("TRANSFORMER_LM_DEVICE", "cuda:1")
    assert_falls_back_with_words("cuda:1 is not used, the CPU is", *["cuda:1"] * (by == "argument"))


# ---------------------------------------------------------------- refuses


def assert_one_sentence(message):
    assert message.count("\n") == 0
    assert message.endswith(".")
    assert ". " not in message


@pytest.mark.parametrize("by", ["argument", "environment variable"])
@pytest.mark.parametrize("wanted", ["abacus", "cuda:first", "meta", "CPU"])
def test_unknown_device_is_refused_in_one_sentence(wanted, by, monkeypatch):
    if by == "environment variable":
        monkeypatch.setenv("TRANSFORMER_LM_DEVICE", wanted)
    with pytest.raises(ValueError, match=f"device must be cpu, cuda, .* or mps, got '{wanted}'") as refusal:
        best_device(*[wanted] * (by == "argument"))
    assert_one_sentence(str(refusal.value))


@pytest.mark.parametrize("wanted", ABSENT)
def test_absent_device_is_refused_in_one_sentence(wanted):
    with pytest.raises(ValueError, match=f"device must be present on this machine, got '{wanted}'") as refusal:
        best_device(wanted)
    assert_one_sentence(str(refusal.value))


# ---------------------------------------------------------------- imports


def modules_after(statement):
    """Return the top-level names of what a fresh interpreter has imported after a statement."""
    code = f"{statement}; import sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    folder = Path(transformer_lm.__file__).parents[1]
    return set(subprocess.check_output([sys.executable, "-c", code], cwd=folder, text=True).split())


def test_importing_the_package_imports_nothing_but_torch():
    ours = modules_after("import transformer_lm")
    assert "transformer_lm" in ours
    assert ours - modules_after("import torch") - sys.stdlib_module_names == {"transformer_lm"}
    assert not ours & {"IPython", "matplotlib", "safetensors"}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_self_test_does_not_depend_on_the_mode_it_is_called_in(mode):
    with mode():
        assert accelerator_fault.__wrapped__(CPU) is None
        loss, gradient = device._loss_with_gradients(CPU)
    assert loss.dtype == gradient.dtype == torch.float32
    expected = device._loss_with_gradients(CPU)
    torch.testing.assert_close((loss, gradient), expected)
