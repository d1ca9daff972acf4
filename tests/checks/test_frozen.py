"""The frozen values: fresh, distinct in every axis, and far enough apart to tell mistakes from each other."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from grading.authoring.freeze import frozen_bytes, frozen_cases
from grading.exercises import value_records
from grading.judging.record import edited
from transformer_lm.checks.engine.diagnosis import tolerance
from transformer_lm.test_values import FOLDER, MultiHeadAttentionTestValues, SelfAttentionTestValues, load_frozen

EXERCISES = pytest.mark.parametrize("record", value_records().values(), ids=list(value_records()))


@EXERCISES
def test_frozen_files_are_fresh(record):
    """Inputs and hints are the same to the byte; what is computed from them may differ in the last bit of a number."""
    fresh, kept = frozen_bytes(record), (FOLDER / f"{record.id}.safetensors").read_bytes()
    stale = "the frozen values are stale: run `make frozen`"
    assert header(fresh) == header(kept), stale
    fresh, kept = load(fresh), load(kept)
    for name, array in kept.items():
        exact = {"rtol": 0, "atol": 0} if "/inputs/" in name else {"rtol": 1e-6, "atol": 1e-6}
        np.testing.assert_allclose(fresh[name], array, **exact, err_msg=f"{name}: {stale}")


def header(frozen: bytes) -> bytes:
    """Return what a safetensors file says of its arrays and the hints, before the numbers begin."""
    return frozen[: 8 + int.from_bytes(frozen[:8], "little")]


def test_every_frozen_file_belongs_to_an_exercise():
    assert {file.stem for file in FOLDER.iterdir()} == set(value_records())


@EXERCISES
def test_no_size_equals_another_or_the_square_of_another(record):
    for sizes in (record.first_sizes, record.first_sizes | record.other_length, record.other_sizes):
        sizes = {name: size for name, size in sizes.items() if name not in ("magnitude", "silent_heads")}
        if "num_heads" in sizes:
            sizes |= {"hidden": sizes["num_heads"] * sizes["head_size"], "rows": sizes["b"] * sizes["num_heads"]}
        divisors = sorted(itertools.chain(sizes.values(), map(math.sqrt, sizes.values())))
        assert min(sizes.values()) > 1
        assert all(larger - smaller > 0.05 for smaller, larger in itertools.pairwise(divisors)), sizes


@EXERCISES
def test_there_is_a_case_for_sizes_of_one_if_the_record_names_some(record):
    cases = load_frozen(record.id).cases
    assert len(cases) == (4 if record.ones else 3)
    assert set(record.ones) <= record.first_sizes.keys()
    name, output = next(iter(cases[-1].outputs.items()))  # others may have more positions
    sizes = dict(zip(record.public.axes[name].split(), output.shape, strict=True))
    assert {sizes[each] for each in record.ones if each in sizes} <= {1}


@EXERCISES
def test_the_second_case_is_longer_than_any_size_of_the_first(record):
    assert max(record.other_length.values()) > max(record.first_sizes.values())
    first, second, *_ = frozen_cases(record)
    for name in first:
        assert np.array_equal(first[name], second[name]) == (name not in record.public.reads)


@EXERCISES
def test_model_answer_computes_the_reference_in_float64(record):
    for case in (*frozen_cases(record), record.draw(random.Random(1), record.first_sizes)):
        expected = record.reference(case)
        outputs = record.outputs(record.model_answer, case)
        assert outputs.keys() == expected.keys()
        for name, output in outputs.items():
            np.testing.assert_allclose(output, expected[name], rtol=1e-12, atol=1e-12)


@EXERCISES
def test_frozen_gradients_are_those_of_the_reference(record):
    """Along a random direction, the reference changes as the gradients predict."""
    case, step = frozen_cases(record)[0], 3e-8  # where a norm needs its epsilon, the slope changes quickly
    rng = np.random.default_rng(0)
    for output, gradients in record.gradients(record.model_answer, case).items():
        direction = {name: rng.standard_normal(case[name].shape) for name in gradients}
        ahead, behind = (_sums_of_squares(record, case, direction, sign * step)[output] for sign in (1, -1))
        slope = sum((gradients[name] * direction[name]).sum() for name in gradients)
        assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-6)


def _sums_of_squares(record, case, direction, step):
    moved = case | {name: case[name] + step * change for name, change in direction.items()}
    return {name: np.square(output).sum() for name, output in record.reference(moved).items()}


@EXERCISES
def test_rounding_of_float32_stays_far_below_the_tolerance(record):
    """Every right answer, in float32, is off by at most a fifth of what the checks allow, also for large numbers."""
    for case in load_frozen(record.id).cases:
        for source in (record.model_answer, *record.right.values()):
            subject = record.public.build(record.answer(source), dict(case.inputs))
            for name, output in zip(record.public.axes, record.public.call(subject, case.inputs), strict=True):
                expected = case.outputs[name]
                assert (output - expected).abs().max() < 0.2 * tolerance(expected), name


@EXERCISES
def test_mistakes_lie_a_hundred_tolerances_from_the_truth_and_from_each_other(record):
    """All outputs together identify a mistake: two mistakes must differ in one of them, unless they share a hint."""
    case = load_frozen(record.id).cases[0]
    answers = {"right": case.outputs} | {
        wrong.name: {name: case.mistakes[name].get(wrong.name, output) for name, output in case.outputs.items()}
        for wrong in record.wrong
    }
    hints = {wrong.name: wrong.hint for wrong in record.wrong}
    for first, second in itertools.combinations(answers, 2):
        if hints.get(first) != hints[second]:
            assert _distance(answers[first], answers[second]) > 100, (first, second)


def _distance(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """Return the largest difference in units of the tolerance; another shape or NaN is infinitely far."""
    distances = []
    for name, mine in first.items():
        other = second[name]
        if mine.shape != other.shape or not torch.equal(mine.isnan(), other.isnan()):
            return math.inf
        distances.append((mine - other).nan_to_num().abs().max().item() / tolerance(other))
    return max(distances)


def test_a_frozen_file_knows_the_id_of_the_hint_for_every_mistake():
    for record in value_records().values():
        assert load_frozen(record.id).hints == {wrong.name: wrong.hint for wrong in record.wrong}


def test_test_values_have_the_attributes_of_the_course():
    single = ["x", *(f"{layer}_{kind}" for layer in "kqv" for kind in ("weight", "bias")), "output"]
    assert set(single) <= set(dir(SelfAttentionTestValues))
    assert {*single, "mix_weight", "mix_bias", "output_causal"} <= set(dir(MultiHeadAttentionTestValues))
    assert SelfAttentionTestValues.output.shape == (2, 5, 11)
    assert MultiHeadAttentionTestValues.output_causal.dtype == torch.float32


def test_test_values_cannot_be_spoilt_by_a_student():
    SelfAttentionTestValues.x.zero_()
    assert SelfAttentionTestValues.x.abs().max() > 1


def test_an_unknown_value_is_refused_with_the_known_ones():
    with pytest.raises(AttributeError, match=r"self-attention are .*k_bias.*, not weight\."):
        _ = SelfAttentionTestValues.weight
    with pytest.raises(ValueError, match=r"must be one of .*attention-scores, .*, kqv, .*, got 'selfattention'"):
        load_frozen("selfattention")


def test_an_edit_that_finds_nothing_is_refused():
    with pytest.raises(ValueError, match="'typo' must find its text once, got 0 times"):
        edited("typo", "return x", ("return y", "return z"))
