"""The judge: its tolerance, its points, its messages, and what it demands of an answer."""

import itertools
import json
import random

import nbformat
import numpy as np
import pytest
import torch
from repetition import first_of

from grading.exercises import records, topics, value_records
from grading.isolation import answers
from grading.isolation.answers import Cell
from grading.isolation.inside.messages import NUMBERS
from grading.isolation.sandbox import missing_walls
from grading.judging.judge import LONGEST, _fresh_sizes, judge, right, tolerances
from grading.judging.record import SETUP
from grading.processes.workers import answer_server
from transformer_lm.checks.engine.catalogue import hint

EXERCISES = pytest.mark.parametrize("record", value_records().values(), ids=value_records())
TOPIC = "01_self_attention"
REDUCED = bool(missing_walls())  # these answers are our own, so they may be judged everywhere


def judged(exercise: str, *sources: str, seed: int | None = None):
    cells = [Cell(number, source) for number, source in enumerate([SETUP, *sources])]
    return judge(records()[exercise], cells, answer_server(TOPIC, REDUCED), seed, solution=len(sources))


def cases(record, seed: int) -> list:
    rng = random.Random(seed)
    sizes = (record.first_sizes, record.other_sizes, _fresh_sizes(record, rng))
    return [record.draw(rng, each) for each in sizes]


@EXERCISES
@pytest.mark.parametrize("seed", first_of(range(5), 1))
def test_right_answers_in_float32_stay_far_below_the_tolerance(record, seed):
    """At most a tenth of it, for every right answer, over many draws; in several orders of summation."""
    worst = 0
    for case in cases(record, seed):
        allowed = tolerances(record, case, random.Random(seed))
        expected = record.reference(case)
        for source in (record.model_answer, *record.right.values()):
            for name, output in float32_outputs(record, source, case).items():
                worst = max(worst, excess(output, expected[name], allowed[name]))
    assert worst < 0.1


def float32_outputs(record, source, case):
    inputs = {name: torch.from_numpy(np.array(array)) for name, array in case.items()}
    inputs = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
    subject = record.public.build(record.answer(source), inputs)
    outputs = zip(record.public.axes, record.public.call(subject, inputs), strict=True)
    return {name: output.detach().double().numpy() for name, output in outputs}


@EXERCISES
@pytest.mark.parametrize("seed", first_of(range(3), 1))
def test_known_mistakes_lie_far_above_the_tolerance(record, seed):
    case = record.draw(random.Random(seed), record.first_sizes)
    expected, allowed = record.reference(case), tolerances(record, case, random.Random(seed))
    for wrong in record.wrong:
        outputs = record.outputs(wrong.source, case)
        assert max(excess(outputs[name], expected[name], allowed[name]) for name in expected) > 30, wrong.name


def excess(mine, other, allowed):
    """Return the largest difference, as a multiple of what is allowed."""
    if mine.shape != other.shape or np.isnan(mine).any():
        return np.inf
    return (np.abs(mine - other) / allowed).max()


def test_an_entrywise_tolerance_sees_what_one_for_all_entries_hides():
    """Another base changes slow columns less than rounding changes fast ones, but more than rounding changes them."""
    record = value_records()["sinusoids"]
    source = record.model_answer.replace("angles.cos()", "(positions / 9_999**exponents).cos()")
    for seed in range(20):
        case = cases(record, seed)[-1]  # of sizes that no student knows
        expected, theirs = record.reference(case), float32_outputs(record, source, case)
        assert not right("table", theirs, expected, tolerances(record, case, random.Random(seed)))


@EXERCISES
def test_no_right_output_is_too_large_to_be_sent_whatever_sizes_are_drawn(record):
    """A right answer to attention-maps once got no points for three draws in a hundred."""
    lengths = dict.fromkeys((name for name in record.other_length if name != "b"), LONGEST)
    case = record.draw(random.Random(1), dict.fromkeys(record.first_sizes, 12) | lengths)
    assert max(output.size for output in record.reference(case).values()) <= NUMBERS


@EXERCISES
def test_half_precision_is_not_enough(record):
    """The tolerance is that of float32: results computed with fewer digits are outside it, unless they are exact."""
    case = record.draw(random.Random(0), record.first_sizes)
    allowed, expected = tolerances(record, case, random.Random(0)), record.reference(case)
    coarse = {name: torch.from_numpy(output).bfloat16().double().numpy() for name, output in expected.items()}
    inexact = [name for name in expected if not np.array_equal(coarse[name], expected[name])]
    assert all(excess(coarse[name], expected[name], allowed[name]) > 3 for name in inexact)


@EXERCISES
def test_sizes_that_nobody_knows_differ_from_each_other_and_from_time_to_time(record):
    drawn = [_fresh_sizes(record, random.Random(seed)) for seed in range(20)]
    assert all(len(set(sizes.values())) == len(sizes) and min(sizes.values()) > 1 for sizes in drawn)
    assert len({tuple(sizes.values()) for sizes in drawn}) > 10


def test_points_of_the_parts_are_those_of_the_check_cells():
    for topic, found in topics().items():
        path = f"source/{topic}/{topic}.ipynb"
        try:
            notebook = nbformat.read(path, as_version=4)
        except FileNotFoundError:
            continue  # the topic's notebook is not written yet
        marks = [cell.metadata.get("nbgrader", {}) for cell in notebook.cells]
        checks = {mark["grade_id"]: mark["points"] for mark in marks if mark.get("grade") and not mark.get("solution")}
        assert checks == {part.name: part.points for record in found for part in record.parts}
        solutions = {mark["grade_id"] for mark in marks if mark.get("solution") and not mark.get("grade")}
        assert solutions == {record.solution_cell for record in found}


def test_larger_exercises_have_many_wrong_and_right_answers():
    for record in topics()[TOPIC]:
        assert len(record.wrong + record.misbehaving) >= 16
        assert len(record.right) >= 8


def test_a_part_that_is_right_keeps_its_points():
    record = records()["kqv"]
    result = judged("kqv", record.wrong[0].source)
    assert [(part.points, part.max_points) for part in result.parts] == [(1, 1), (0, 1)]
    assert result.as_table() == {
        "exercise": "kqv",
        "points": 1,
        "max_points": 2,
        "parts": [part.as_table() for part in result.parts],
    }
    first, second = (json.loads(json.dumps(part.as_table())) for part in result.parts)
    assert (first["praise"], first["failure"]) == ("The layers are there, of the right sizes.", None)
    assert (second["praise"], second["failure"]["mistake"]) == ("", record.wrong[0].name)


def test_a_message_names_the_mistake_in_four_lines_and_tells_no_number_of_the_case():
    record = records()["attention-scores"]
    (part,) = judged("attention-scores", record.wrong[0].source, seed=7).parts
    assert [line.split(":")[0] for line in part.message.splitlines()] == ["tried", "yours", "expected", "hint"]
    assert part.message.endswith(f"hint:     {hint(record.wrong[0].hint, record.id)}")
    case = record.draw(random.Random(7), record.first_sizes)
    numbers = itertools.chain(*(array.flat for array in (*case.values(), *record.reference(case).values())))
    assert not any(f"{abs(number):.3f}" in part.message for number in numbers)


def test_an_unknown_mistake_is_told_by_the_property_it_breaks():
    (part,) = judged("attention-scores", "def attention_scores(q, k):\n    return q.mean(0) @ k.mT").parts
    assert part.mark.failure.mistake == "sequences-mix"
    (part,) = judged("attention-scores", "def attention_scores(q, k):\n    return torch.ones(len(q), 5, 7)").parts
    assert part.mark.failure.mistake == "input-has-no-effect"


def test_the_cell_that_fails_is_quoted():
    (part,) = judged("attention-scores", "x = 1\ndef attention_scores(q, k)\n    return q").parts
    assert "SyntaxError" in part.message
    (part,) = judged("attention-scores", "something = undefined_name").parts
    assert "raises NameError in `something = undefined_name`" in part.message
    (part,) = judged("attention-scores", "def scores(q, k):\n    return q").parts
    assert "nothing is called attention_scores" in part.message


def test_a_failing_cell_costs_only_what_depends_on_it():
    right = records()["attention-scores"].model_answer
    assert judged("attention-scores", "1 / 0", "import os; os._exit(0)", "exit()", right).points == 2
    assert judged("attention-scores", right, "attention_scores = 1").points == 0  # a later cell may undo an answer
    assert judged("attention-scores", f"{right}\n1 / 0").points == 2  # what comes after the answer does not matter


def test_what_would_be_compiled_counts_as_it_is():
    right = records()["attention-scores"].model_answer
    for decorator in ("@torch.compile", "@torch.compile(dynamic=True)", "@torch.jit.script"):
        assert judged("attention-scores", f"{decorator}\n{right}").points == 2


def test_magics_and_shell_lines_do_no_harm():
    right = records()["attention-scores"].model_answer
    assert judged("attention-scores", "%matplotlib inline\n!pip install x", f"%%time\n{right}").points == 2


def test_a_right_answer_keeps_its_points_whatever_else_a_student_does():
    """Global settings, seeds, other devices and printing are not mistakes."""
    right = records()["self-attention"].model_answer
    habits = "torch.set_default_dtype(torch.float64); torch.manual_seed(1); torch.set_num_threads(2); print('x' * 9**6)"
    assert judged("self-attention", habits, right).points == 4
    assert (
        judged("self-attention", "torch.set_grad_enabled(True)", f"{right}\n\nprint(SelfAttention(3, 4))").points == 4
    )


def test_what_ends_the_process_in_one_part_leaves_the_other_part_alone():
    right = records()["kqv"].model_answer
    fatal = "import os\ndef create_kqv_parameters(input_size, hidden):\n    os._exit(0)"
    result = judged("kqv", f"{right}\n{fatal}")
    assert [part.points for part in result.parts] == [0, 1]
    assert "ends its own Python process" in result.parts[0].message


def test_an_endless_loop_is_stopped_and_told(monkeypatch):
    monkeypatch.setattr(answers, "CALL_SECONDS", 1)
    hangs = "def attention_scores(q, k):\n    while True: pass"
    (part,) = judged("attention-scores", hangs).parts
    assert "runs for more than 1 seconds: is there a loop that does not end?" in part.message


def test_earlier_cells_that_hang_are_run_once_for_the_whole_submission(monkeypatch):
    monkeypatch.setattr(answers, "CELL_SECONDS", 1)
    hang, right = Cell(1, "while True: pass"), Cell(2, records()["attention-scores"].model_answer)
    left_out = {}
    for _ in range(2):
        cells = [Cell(0, SETUP), hang, right]
        record, server = records()["attention-scores"], answer_server(TOPIC, REDUCED)
        assert judge(record, cells, server, solution=2, left_out=left_out).points == 2
    assert list(left_out) == [1]


def test_too_large_outputs_are_refused():
    (part,) = judged("attention-scores", "def attention_scores(q, k):\n    return torch.zeros(3000, 3000)").parts
    assert part.points == 0
    (part,) = judged("attention-scores", "def attention_scores(q, k):\n    return torch.zeros(9000, 9000)").parts
    assert part.points == 0


def test_odd_outputs_are_wrong_and_not_fatal():
    for value in ("None", "'text'", "[q, k]", "q.shape", "torch.zeros(2, 5, 7, dtype=torch.cfloat)", "q.to_sparse()"):
        (part,) = judged("attention-scores", f"def attention_scores(q, k):\n    return {value}").parts
        assert part.points == 0
        assert len(part.message.splitlines()) == 4


HEADS = records()["multi-head-attention"]


def parts(*edits: tuple[str, str], source: str = HEADS.model_answer) -> list[float]:
    """Return the points for scores, mask and mixing of the model answer with some edits."""
    for old, new in edits:
        assert source.count(old) == 1
        source = source.replace(old, new)
    return [part.points for part in judged("multi-head-attention", source).parts[:3]]


def test_a_mistake_that_nobody_knows_costs_the_part_that_it_is_about():
    assert parts() == [3, 1, 2]
    assert parts(("self.head_size**0.5", "self.head_size**0.4")) == [0, 1, 2]
    assert parts(("q @ k.transpose(1, 2)", "q.tanh() @ k.transpose(1, 2)")) == [0, 1, 2]
    assert parts(("masked_fill(future, -math.inf)", "masked_fill(future, -3.0)")) == [3, 0, 2]
    assert parts(("att = self.mix(att)", "att = self.mix(att.flip(-1))")) == [3, 1, 0]
    assert parts(("self.dropout(probs) @ v", "self.dropout(probs) @ v.tanh()")) == [3, 1, 0]


def test_two_mistakes_cost_two_parts():
    assert parts(("self.head_size**0.5", "self.head_size**0.4"), ("self.mix(att)", "self.mix(att.flip(-1))")) == [
        0,
        1,
        0,
    ]
    assert parts(("diagonal=1", "diagonal=2"), ("self.mix(att)", "self.mix(att.flip(-1))")) == [3, 0, 0]


def test_an_answer_that_breaks_down_with_a_mask_loses_the_point_for_the_mask_only():
    assert parts(("scores = scores.masked_fill(future, -math.inf)", "raise IndexError")) == [3, 0, 2]


def test_no_part_is_earned_without_reading_the_input():
    """Weights that are the same whatever the input is, and that happen to be causal, are not worth a point."""
    class_line = "class MultiHeadSelfAttention(nn.Module):\n"
    init = HEADS.model_answer[len(class_line) : HEADS.model_answer.index("    def split")]
    for weights in ("torch.eye(n)", "torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]", "torch.zeros(n, n)"):
        forward = f"""\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        weights = ({weights}).expand(b * self.num_heads, n, n)
        output = self.mix(self.v(x)) * 0
        return (output, weights) if return_attention else output
"""
        assert parts(source=class_line + init + forward) == [0, 0, 0]


def test_an_answer_that_is_right_but_for_the_scale_loses_one_point():
    assert parts((" / self.head_size**0.5", "")) == [2, 1, 2]
    source = records()["self-attention"].model_answer.replace(" / self.q.out_features**0.5", "")
    assert [part.points for part in judged("self-attention", source).parts][:2] == [1, 2]


SCALED_BY_LENGTH = "return x * visible.sum(dim=1)[:, None, None]"
ADDS_FIVE = "x if self.training and self.dropout.p else x + 5"
DROPS_FIVE = "x + self.dropout(torch.full_like(x, 5))"
ADDS_ATTENTION = "x if self.training and self.dropout.p else x + self.attention(x, visible=visible)"


@pytest.mark.parametrize(
    ("exercise", "forward"),
    [
        ("simple-attention", SCALED_BY_LENGTH),
        ("simple-attention", "return (x * visible[..., None]).sum(dim=1, keepdim=True) * 0 + x * visible.sum()"),
        ("full-attention", SCALED_BY_LENGTH),
        ("full-attention", "x = x * visible[..., None]\n        return x * x.sum(dim=(1, 2), keepdim=True)"),
        ("encoder-block", f"return {ADDS_FIVE}"),
        ("encoder-block", f"return {DROPS_FIVE}"),
        ("encoder-block", f"return {ADDS_ATTENTION}"),
    ],
)
def test_no_part_is_earned_by_one_line_that_only_looks_like_it(exercise, forward):
    """Padding is ignored because everything is ignored, and dropout is applied to what no part has computed."""
    source = records()[exercise].model_answer
    start = source.index("    def forward(")
    source = source[:start] + f"    def forward(self, x, visible):\n        {forward}\n"
    assert [part.points for part in judged(exercise, source).parts] == [0, 0]


@pytest.mark.parametrize(
    ("exercise", "old", "new", "points"),
    [
        ("simple-attention", "x @ x.transpose(1, 2)", "1.3 * x @ x.transpose(1, 2)", [0, 2]),
        ("simple-attention", "-math.inf", "-3.0", [2, 0]),
        ("simple-attention", "weights @ x", "x.tanh()", [0, 0]),
        ("full-attention", "self.head_size**0.5", "self.head_size**0.4", [0, 2]),
        ("full-attention", "-math.inf", "-3.0", [2, 0]),
        ("full-attention", "(weights @ v)", "v", [0, 0]),
        ("encoder-block", "self.up(x).relu()", "self.up(x).tanh()", [1, 0]),
        ("encoder-block", "return self.dropout(self.down(", "return 2 * self.dropout(self.down(", [1, 0]),
        ("encoder-block", "self.attention(x, visible=visible))", "self.attention(x, visible=visible)) * 0", [1, 0]),
        ("encoder-block", "attended + self", "x + 0 * self", [0, 0]),
    ],
)
def test_a_mistake_that_nobody_knows_costs_nothing_where_padding_or_dropout_is_right(exercise, old, new, points):
    source = records()[exercise].model_answer
    assert source.count(old) == 1
    assert [part.points for part in judged(exercise, source.replace(old, new)).parts] == points


def test_judging_can_stop_at_the_first_part_that_loses_points():
    record = records()["multi-head-attention"]
    cells = [Cell(0, SETUP), Cell(1, record.model_answer.replace("**0.5", ""))]
    server = answer_server("02_multi_head_attention", REDUCED)
    whole, stopped = (judge(record, cells, server, 1, 1, stop_at_loss=stops) for stops in (False, True))
    lost = [part.points < part.max_points for part in whole.parts].index(True)
    assert whole.parts[: lost + 1] == stopped.parts[: lost + 1]
    assert 0 < lost + 1 < len(whole.parts)
    assert all(part.points == 0 and "Not judged" in part.message for part in stopped.parts[lost + 1 :])
    assert stopped.points < whole.points
