"""Planted heads are found, and no others, in twenty models drawn at random."""

import random

import pytest
import torch
from repetition import first_of

from transformer_lm.heads.ablation import ablate_heads
from transformer_lm.heads.planted import KINDS, NOTHING, planted_model, planted_text, planted_tokenizer
from transformer_lm.heads.recording import record_attention
from transformer_lm.heads.repeats import repeated_tokens
from transformer_lm.heads.scores import Measured, measure_heads
from transformer_lm.modeling_lm import TransformerLM

N = 40
TOKENIZER = planted_tokenizer()
ANYWHERE = [kind for kind in (*KINDS, "offset 3", "offset 9") if kind not in ("word_start", "induction")]


def random_plan(rng: random.Random) -> list[list[str]]:
    """Return a plan of 3 layers with 4 heads, some of which follow no named pattern."""
    deeper = [*ANYWHERE, "word_start"]
    plan = [
        ["previous", *rng.sample(ANYWHERE, 2), rng.choice(NOTHING)],
        ["word_start", *rng.sample(deeper, 2), rng.choice(NOTHING)],
        ["induction", *rng.sample(deeper, 2), rng.choice(NOTHING)],
    ]
    for layer in plan:
        rng.shuffle(layer)
    return plan


def texts(rng: random.Random, b: int = 16) -> torch.Tensor:
    return torch.tensor([TOKENIZER.encode(planted_text(rng, N)) for _ in range(b)])


def measured(model: TransformerLM, rng: random.Random) -> Measured:
    return measure_heads(model, [texts(rng), texts(rng)], TOKENIZER, progress=False)


@pytest.mark.parametrize("seed", first_of(range(20), 5))
def test_exactly_the_planted_heads_are_found(seed):
    rng = random.Random(seed)
    plan = random_plan(rng)
    model = planted_model(plan, TOKENIZER, N, sharpness=rng.uniform(7, 20), seed=seed)
    expected = [[None if kind in NOTHING else kind for kind in layer] for layer in plan]
    assert measured(model, rng).names() == expected


@pytest.mark.parametrize("kind", [kind for kind in ANYWHERE if kind not in NOTHING])
def test_every_kind_can_be_planted_alone(kind):
    rng = random.Random(kind)
    model = planted_model([[kind, "uniform"]], TOKENIZER, N)
    assert measured(model, rng).names() == [[kind, None]]


def test_a_planted_head_gives_almost_all_to_its_pattern():
    rng = random.Random(3)
    model = planted_model([["previous", "duplicate"], ["word_start", "previous_space"]], TOKENIZER, N, sharpness=20)
    found = measured(model, rng).patterns
    for layer, head, kind in ((0, 0, "previous"), (0, 1, "duplicate"), (1, 0, "word_start"), (1, 1, "previous_space")):
        assert found[kind].score[layer, head] > 0.99


def test_an_untrained_model_has_no_head_with_a_name():
    torch.manual_seed(0)
    model = planted_model([["uniform"] * 4] * 2, TOKENIZER, N)
    model.init_weights("gpt2")
    assert measured(model, random.Random(0)).names() == [[None] * 4] * 2


def test_a_planted_induction_head_predicts_and_needs_what_stood_before():
    """Both heads of the circuit are needed, and none of the others makes any difference."""
    model = planted_model([["first", "previous"], ["induction", "random"]], TOKENIZER, N)
    tokens = repeated_tokens(TOKENIZER.vocab_size, 8, N, torch.Generator().manual_seed(0))
    period_is_over = torch.arange(N - 1) >= 20  # the longest string has 20 tokens
    changes = ablate_heads(
        model, [tokens], how="zero", serves=lambda given: period_is_over.expand(len(given), -1), progress=False
    )
    assert changes[0, 0].served_loss < 0.1
    assert changes[0, 1].served_change > 1
    assert changes[1, 0].served_change > 1
    assert abs(changes[0, 0].change) < 1e-4
    assert abs(changes[1, 1].change) < 1e-4


def test_the_same_seed_gives_the_same_model_and_another_seed_other_weights():
    plan = [["previous", "random"]]
    one, same, other = (planted_model(plan, TOKENIZER, N, seed=seed) for seed in (1, 1, 2))
    tokens = texts(random.Random(0), 2)
    name = "blocks.0.attention.weights"
    assert torch.equal(record_attention(one, tokens)[name], record_attention(same, tokens)[name])
    assert not torch.allclose(one.embed.tokens.weight, other.embed.tokens.weight)


def test_planted_text_has_what_heads_look_for():
    text = planted_text(random.Random(0), 400)
    assert len(text) == 400
    assert set(" \n.,aeT") <= set(text)
    assert set(text) <= set(TOKENIZER.characters)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ([], "plan must be layers"),
        ([["first"], ["first", "first"]], "plan must be layers"),
        ([["nonsense"]], "kinds must be among"),
        ([["offset x"]], "kinds must be among"),
        ([["word_start"]], "word_start must come after a layer 0 with a previous head, got layer 0"),
        ([["first"], ["induction"]], "induction must come after a layer 0 with a previous head"),
        ([["previous"], ["induction"], ["first"]], "induction must be in the last layer, got layer 1 of 3"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(plan, words):
    with pytest.raises(ValueError, match=words):
        planted_model(plan, TOKENIZER, N)
