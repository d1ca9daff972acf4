"""The exercise of topic 02 about writing a test of attention scores: what good tests catch and poor ones miss."""

from grading.judging.record import Part, Record, WrongAnswer, edited
from grading.judging.written_tests import mutations
from transformer_lm.checks.topic_02_multi_head_attention.student_test import STUDENT_TEST

MODEL_ANSWER = """\
def test_attention_scores(attention_scores):
    queries = torch.tensor([[[1.0, 0, 2, 1], [0, 3, 1, 0]], [[2, 1, 0, 1], [1, 1, 1, 1]]])
    keys = torch.tensor([[[1.0, 1, 0, 2], [0, 1, 2, 0], [3, 0, 1, 1]], [[2, 0, 1, 0], [1, 2, 0, 1], [0, 0, 3, 1]]])
    expected = torch.tensor([[[3.0, 4, 6], [3, 5, 1]], [[4, 5, 1], [3, 4, 4]]]) / 2
    scores = attention_scores(queries, keys)
    assert scores.shape == (2, 2, 3)
    assert torch.allclose(scores, expected)
"""

COMPARES = "    assert torch.allclose(scores, expected)\n"
SHAPES = "    assert scores.shape == (2, 2, 3)\n"

MISBEHAVING = (
    edited("always-passes", MODEL_ANSWER, (SHAPES + COMPARES, ""), hint="test-passes-always"),
    edited(
        "prints", MODEL_ANSWER, (SHAPES + COMPARES, "    print(torch.allclose(scores, expected))\n"), hint="test-prints"
    ),
    edited(
        "returns", MODEL_ANSWER, (SHAPES + COMPARES, "    return torch.equal(scores, expected)\n"), hint="test-returns"
    ),
    WrongAnswer(
        "never-calls", "def test_attention_scores(attention_scores):\n    assert True\n", hint="test-never-calls"
    ),
    edited(
        "swallows-its-own-failure",
        MODEL_ANSWER,
        (
            SHAPES + COMPARES,
            "    try:\n        assert torch.allclose(scores, expected)\n    except Exception:\n        pass\n",
        ),
        hint="test-passes-always",
    ),
    edited(
        "tests-its-own-expectation",
        MODEL_ANSWER,
        (SHAPES, ""),
        (COMPARES, "    assert expected is not None\n"),
        hint="test-passes-always",
    ),
    edited(
        "always-fails",
        MODEL_ANSWER,
        (COMPARES, "    assert False\n"),
        hint="test-refuses-the-right-version",
        says="it fails for the right version: ",
    ),
    edited(
        "expects-no-scale",
        MODEL_ANSWER,
        (" / 2\n", "\n"),
        hint="test-refuses-the-right-version",
        says="it fails for the right version: ",
    ),
    edited(
        "expects-the-transpose",
        MODEL_ANSWER,
        ("(2, 2, 3)", "(2, 3, 2)"),
        hint="test-refuses-the-right-version",
        says="it fails for the right version: ",
    ),
    edited(
        "takes-no-argument",
        MODEL_ANSWER,
        ("(attention_scores):", "():"),
        hint="not-reached",
        says="it fails for the right version: ",
    ),
    WrongAnswer(
        "one-number",
        """\
def test_attention_scores(attention_scores):
    torch.manual_seed(0)
    queries, keys = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    assert abs(attention_scores(queries, keys)[1, 0, 1] - queries[1, 0] @ keys[1, 1] / 2) < 1e-4
""",
        costs=0.4,
        hint="test-of-sizes-alike",
        says="your test catches 8 of 10 wrong versions; it misses one that leaves out the last key",
    ),
    edited(
        "raises",
        MODEL_ANSWER,
        ("allclose(scores, expected)", "allclose(scores, expcted)"),
        says="it fails for the right version: ",
    ),
    edited(
        "exits",
        MODEL_ANSWER,
        (COMPARES, "    raise SystemExit\n"),
        hint="raises",
        says="it fails for the right version: ",
    ),
    edited(
        "shape-only",
        MODEL_ANSWER,
        (COMPARES, ""),
        costs=1.6,
        hint="test-of-shapes-alone",
        says="your test catches 2 of 10 wrong versions; it misses one that does not scale;",
    ),
    WrongAnswer(
        "one-feature",
        """\
def test_attention_scores(attention_scores):
    queries = torch.tensor([[[1.0], [2.0]], [[4.0], [5.0]]])
    keys = torch.tensor([[[1.0], [3.0], [2.0]], [[2.0], [1.0], [7.0]]])
    expected = torch.tensor([[[1.0, 3, 2], [2, 6, 4]], [[8.0, 4, 28], [10, 5, 35]]])
    assert torch.allclose(attention_scores(queries, keys), expected)
""",
        costs=0.6,
        hint="test-of-sizes-alike",
        says="your test catches 7 of 10 wrong versions; it misses one that does not scale; one that divides",
    ),
    WrongAnswer(
        "one-sequence",
        """\
def test_attention_scores(attention_scores):
    queries = torch.tensor([[[1.0, 0, 2, 1], [0, 3, 1, 0]]])
    keys = torch.tensor([[[1.0, 1, 0, 2], [0, 1, 2, 0], [3, 0, 1, 1]]])
    expected = torch.tensor([[[1.5, 2, 3], [1.5, 2.5, 0.5]]])
    assert torch.allclose(attention_scores(queries, keys), expected)
""",
        costs=0.2,
        hint="test-of-sizes-alike",
        says="your test catches 9 of 10 wrong versions; it misses one that gives every sequence the scores",
    ),
    WrongAnswer(
        "as-many-keys-as-features",
        """\
def test_attention_scores(attention_scores):
    queries = torch.arange(24.0).reshape(2, 3, 4)
    keys = torch.arange(32.0).reshape(2, 4, 4) - 9
    expected = torch.einsum("bid,bjd->bij", queries, keys) / 2
    assert torch.allclose(attention_scores(queries, keys), expected)
""",
        costs=0.2,
        hint="test-of-sizes-alike",
        says="your test catches 9 of 10 wrong versions; it misses one that scales by the number of keys",
    ),
    WrongAnswer(
        "constant-input",
        """\
def test_attention_scores(attention_scores):
    ones = torch.ones(2, 3, 5)
    assert torch.allclose(attention_scores(ones, ones), torch.full((2, 3, 3), 5**0.5))
""",
        costs=1,
        hint="test-of-sizes-alike",
        says="it misses one that gives a row to each key",
    ),
)

RIGHT = {
    "assert-close": MODEL_ANSWER.replace(
        "assert torch.allclose(scores, expected)", "torch.testing.assert_close(scores, expected)"
    ),
    "if-and-raise": MODEL_ANSWER.replace(
        COMPARES, '    if (scores - expected).abs().max() > 1e-5:\n        raise AssertionError("wrong numbers")\n'
    ),
    "raises-an-error-of-its-own": MODEL_ANSWER.replace(
        COMPARES, '    if not torch.allclose(scores, expected):\n        raise ValueError("wrong numbers")\n'
    ).replace(SHAPES, ""),
    "half-precision": """\
def test_attention_scores(attention_scores):
    torch.manual_seed(0)
    queries, keys = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    expected = torch.einsum("bid,bjd->bij", queries, keys) / 2
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        scores = attention_scores(queries.to(dtype), keys.to(dtype))
        assert scores.dtype == dtype
        assert torch.allclose(scores.float(), expected, atol=0.2)
    assert torch.allclose(attention_scores(queries, keys), expected, atol=1e-5)
""",
    "by-loops": """\
def test_attention_scores(attention_scores):
    torch.manual_seed(3)
    queries, keys = torch.randn(3, 2, 5), torch.randn(3, 4, 5)
    scores = attention_scores(queries, keys)
    for b in range(3):
        for i in range(2):
            for j in range(4):
                product = sum(queries[b, i, d] * keys[b, j, d] for d in range(5))
                assert abs(scores[b, i, j] - product / math.sqrt(5)) < 1e-4
""",
    "random-every-time": """\
def test_attention_scores(attention_scores):
    for b, i, j, dh in ((2, 3, 5, 7), (1, 1, 4, 2), (4, 6, 2, 3)):
        queries, keys = torch.randn(b, i, dh), torch.randn(b, j, dh)
        expected = torch.einsum("bid,bjd->bij", queries, keys) / dh**0.5
        assert torch.allclose(attention_scores(queries, keys), expected, atol=1e-5)
""",
    "keyword-arguments": MODEL_ANSWER.replace("(queries, keys)\n", "(keys=keys, queries=queries)\n"),
    "float64": MODEL_ANSWER.replace(
        "attention_scores(queries, keys)", "attention_scores(queries.double(), keys.double())"
    ).replace("expected)", "expected.double())"),
    "against-the-package": """\
from transformer_lm import attention


def test_attention_scores(attention_scores):
    queries, keys = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    assert torch.allclose(attention_scores(queries, keys), attention.attention_scores(queries, keys), atol=1e-5)
""",
    "expects-a-refusal-too": MODEL_ANSWER
    + """\
    try:
        attention_scores(queries, keys[..., :3])
    except ValueError:
        return
    raise AssertionError("keys of another width must be refused")
""",
    "prints-as-well": MODEL_ANSWER.replace(SHAPES, '    print("scores", scores)\n' + SHAPES),
    "helper-and-cases": """\
CASES = [(2, 3, 4, 5), (3, 2, 5, 6)]


def expected_scores(queries, keys):
    return torch.stack([q @ k.T / math.sqrt(q.shape[1]) for q, k in zip(queries, keys)])


def test_attention_scores(attention_scores):
    for b, i, j, dh in CASES:
        queries, keys = torch.rand(b, i, dh) - 0.5, torch.rand(b, j, dh) + 1
        assert (attention_scores(queries, keys) - expected_scores(queries, keys)).abs().max() < 1e-4
""",
}

STUDENT_TEST_RECORD = Record(
    public=STUDENT_TEST,
    title="A test that convinces",
    defines="test_attention_scores",
    parts=(Part("student-test-check", 2, mutations),),
    model_answer=MODEL_ANSWER,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
