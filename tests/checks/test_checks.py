"""The visible checks: every known mistake is named, every right answer passes, other mistakes are reported clearly."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from checkout import ROOT
from torch import nn

from grading.exercises import records, value_records
from grading.exercises.topic_03_classification.pools import BEHAVIOURS
from transformer_lm import checks, lm, modeling_encoder_decoder, modeling_lm, sampling
from transformer_lm.attention import (
    attention_scores,
    create_causal_mask,
    create_kqv_parameters,
    kqv,
    multi_head_attention_layer,
    self_attention,
)
from transformer_lm.checks.engine.contract import PublicExercise
from transformer_lm.checks.engine.diagnosis import compare
from transformer_lm.checks.engine.ready_made import READY_MADE, refused_attention
from transformer_lm.heads import patterns, recording, scores
from transformer_lm.heads.character_classes import Alphabet
from transformer_lm.heads.planted import planted_tokenizer
from transformer_lm.modeling_attention import (
    CausalSelfAttention,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    SelfAttention,
    SimpleSelfAttention,
)
from transformer_lm.modeling_classifier import SequenceClassifier, pooled
from transformer_lm.modeling_encoder_decoder import CrossDecoderBlock
from transformer_lm.modeling_transformer import PositionEmbedding, TransformerDecoderBlock, TransformerEncoderBlock
from transformer_lm.test_values import Case
from transformer_lm.translation import decoding, targets

NUMBERS_OR_SAMPLES = (*value_records(), "slices", "sampling")
CHECKS = {exercise: getattr(checks, exercise.replace("-", "_")) for exercise in NUMBERS_OR_SAMPLES}
WRONG = [(record, wrong) for record in value_records().values() for wrong in record.wrong]
RIGHT = [
    (record, name, source)
    for record in value_records().values()
    for name, source in {"model-answer": record.model_answer, **record.right}.items()
]

# The mistakes that the checks promise to name, whatever else they know.
PROMISED = {
    "self-attention": {
        "not-scaled", "scaled-by-width", "softmax-over-queries", "softmax-over-batch", "query-key-swapped", "no-bias",
        "softmax-twice",
    },
    "multi-head-attention": {
        "not-scaled", "scaled-by-width", "scaled-by-hidden", "scaled-by-heads", "softmax-over-queries",
        "softmax-over-batch", "query-key-swapped", "no-bias", "split-by-view", "merged-without-transpose", "no-mixing",
        "mask-hides-diagonal", "mask-wrong-triangle", "mask-after-softmax", "masked-with-zero", "softmax-twice",
    },
    "mean-pool": {"over-padding", "divided-by-length"},
    "max-pool": {"over-padding", "with-zeros"},
    "select-pool": {"last"},
    "sequence-classifier": {"softmax-inside", "everything-visible", "pad-taken-for-zero"},
    "position-embedding": {"counted-from-one", "numbers-of-sequences", "positions-replace-input"},
    "simple-attention": {"scaled", "reads-padding", "mask-after-softmax", "masked-with-zero", "softmax-over-queries"},
    "full-attention": {
        "not-scaled", "scaled-by-hidden", "scaled-by-heads", "split-by-view", "heads-mixed-with-batch", "no-mixing",
        "merged-without-transpose", "reads-padding", "mask-in-another-order", "mask-after-softmax",
    },
    "encoder-block": {
        "no-residual", "no-residual-around-attention", "no-residual-around-mlp", "norm-over-positions",
        "norm-over-batch", "norm-over-sequences", "post-norm", "no-dropout", "dropout-in-eval-mode",
        "dropout-of-the-sum", "mask-not-passed-on",
    },
    "labels": {"not-shifted", "shifted-twice", "exchanged", "sequences-shifted"},
    "loss": {
        "padding-predicted", "averaged-over-padding", "mean-of-means", "softmax-twice", "bits", "last-token-left-out",
    },
    "mask-future": {"hides-diagonal", "wrong-triangle", "masked-with-zero", "softmax-included"},
    "embed": {"positions-replace-tokens", "positions-left-out", "counted-from-one", "numbers-of-sequences"},
    "language-model": {
        "positions-replace-embeddings", "no-positions", "no-residual", "residual-of-the-normalised", "post-norm",
        "no-final-norm", "softmax-inside", "blocks-reversed", "tied",
    },
    "last-position-bits": {
        "position-before-the-last", "last-input-as-label", "natural-logs", "mean-of-means", "in-train-mode",
        "softmax-twice", "zero-taken-for-padding", "batches-read-twice",
    },
    "next-probabilities": {
        "temperature-multiplied", "temperature-after-softmax", "divided-by-zero", "top-k-ignored",
        "top-k-not-renormalised", "masked-with-zero", "softmax-twice",
    },
    "attention-maps": {
        "softmax-twice", "transposed", "heads-before-sequences", "all-from-the-first-input", "norm-forgotten",
        "mlp-left-out", "last-block-only", "heads-averaged",
    },
    "offset-profile": {
        "softmax-twice", "rows-and-columns-swapped", "batch-viewed-as-heads", "batch-and-heads-exchanged",
        "zeros-counted", "one-too-near", "one-too-far",
    },
    "class-mass": {
        "softmax-twice", "transposed", "queries-and-keys-swapped", "batch-viewed-as-heads", "mean-of-means",
        "nan-for-a-missing-class",
    },
    "pattern-score": {
        "softmax-twice", "keys-in-place-of-queries", "batch-viewed-as-heads", "queries-without-a-key-counted",
        "queries-that-read-no-key-left-out", "mean-of-means", "maps-averaged-first", "chance-of-a-full-head",
        "chance-of-one-in-n",
    },
    "position-null": {
        "softmax-twice", "transposed", "batch-viewed-as-heads", "zeros-counted", "not-renormalised",
        "first-sequence-only", "with-the-future", "mean-map",
    },
    "induction-pattern": {
        "duplicate", "key-before", "diagonal-included", "future-included", "latest-only", "sequences-mixed",
        "wraps-around", "token-0-before-the-first", "token-99-before-the-first", "few-bits",
    },
    "find-heads": {
        "always-a-name", "largest-score-always", "no-chance", "no-null", "null-for-places-too", "largest-score",
        "largest-ratio", "maps-averaged", "distance-one-too-large", "over-all-queries", "thresholds-exchanged",
        "zero-for-nothing", "summed", "nan-wins", "after-the-first-pattern",
    },
    "shift-target": {
        "not-shifted", "no-end", "end-of-the-row", "end-everywhere", "end-overwrites-the-last-word", "start-in-labels",
        "end-in-inputs", "shifted-twice", "zero-taken-for-padding", "start-and-end-exchanged", "last-word-lost",
        "roll-wraps-around", "padded-on-the-left", "length-of-the-first", "flattened", "full-sentence-loses-a-word",
    },
    "sinusoids": {
        "garbled-exponent", "a-wave-for-each-column", "halves", "exchanged", "base-1000", "counted-from-one",
        "exponents-twice-as-large", "exponents-half-as-large", "multiplied", "transposed", "degrees", "sines-only",
        "up-to-one", "whole-division", "batch-axis",
    },
    "cross-attention": {
        "queries-from-source", "padding-attended", "lengths-swapped-by-view", "weights-transposed",
        "mask-after-softmax", "masked-with-zero", "not-scaled", "scaled-by-hidden", "scaled-by-heads",
        "softmax-over-queries", "split-by-view", "merged-without-transpose", "mask-in-another-order", "no-mixing",
        "causal", "key-value-swapped",
    },
    "target-mask": {
        "diagonal-hidden", "wrong-triangle", "padding-visible", "padding-of-queries", "rows-of-padding-blank",
        "true-and-false-exchanged", "look-ahead-missing", "padding-of-the-first", "pad-taken-for-zero",
        "without-a-batch", "either",
    },
    "cross-block": {
        "target-read-in-place-of-memory", "source-mask-not-passed", "target-mask-not-passed", "cross-attention-first",
        "no-residual", "no-residual-around-attention", "no-residual-around-cross-attention", "no-residual-around-mlp",
        "post-norm", "norm-on-memory", "norms-swapped", "in-parallel", "look-ahead-missing",
    },
    "greedy-decode": {
        "start-kept", "end-cut-off", "end-never-chosen", "goes-on-after-end", "stops-with-the-first",
        "stops-at-max-len-only", "one-too-few", "one-too-many", "last-token-only", "first-position", "exchanged",
        "waits-for-padding", "asks-once-more",
    },
    "beam-search": {
        "greedy", "begins-with-copies", "alpha-ignored", "normalised-at-the-end", "start-counted", "end-not-counted",
        "finished-dropped", "finished-extended", "finished-kept-aside", "stops-at-the-first-end", "last-returned",
        "start-returned", "end-left-out", "probabilities-added", "no-softmax", "each-on-its-own", "one-token-too-few",
    },
}  # fmt: skip


def failure(check, answer) -> checks.CheckFailed:
    with pytest.raises(checks.CheckFailed) as caught:
        check(answer)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["tried", "yours", "expected", "hint"]
    return caught.value


@pytest.mark.parametrize(("record", "wrong"), WRONG, ids=[f"{record.id}-{wrong.name}" for record, wrong in WRONG])
def test_a_known_mistake_fails_and_is_named(record, wrong):
    assert failure(CHECKS[record.id], record.answer(wrong.source)).mistake == wrong.hint


@pytest.mark.parametrize(("record", "name", "source"), RIGHT, ids=[f"{record.id}-{name}" for record, name, _ in RIGHT])
def test_a_right_answer_passes_in_one_line(record, name, source, capsys):
    CHECKS[record.id](record.answer(source))
    printed = capsys.readouterr().out
    assert printed.startswith(f"✓ {record.id}: right for every size tried")
    assert printed.count("\n") == 1


def test_the_promised_mistakes_are_known():
    for exercise, promised in PROMISED.items():
        assert promised <= {wrong.name for wrong in records()[exercise].wrong}


def test_the_package_passes_its_own_checks(capsys, monkeypatch):
    """Except for one rule, which is for answers: the package may call torch's ready-made attention."""
    monkeypatch.setattr(PublicExercise, "rules", lambda exercise: nullcontext())
    checks.kqv_parameters(create_kqv_parameters)
    checks.kqv(kqv)
    checks.attention_scores(attention_scores)
    checks.self_attention_layers(SelfAttention)
    checks.self_attention(SelfAttention)
    checks.causal_mask(create_causal_mask)
    checks.masked_self_attention(self_attention)
    checks.multi_head_attention_layer(multi_head_attention_layer)
    checks.multi_head_attention(MultiHeadSelfAttention)
    checks.decoder_block(TransformerDecoderBlock)
    checks.mean_pool(pooled)
    checks.max_pool(pooled)
    checks.select_pool(pooled)
    checks.sequence_classifier(SequenceClassifier)
    checks.position_embedding(PositionEmbedding)
    checks.simple_attention_whole(SimpleSelfAttention)
    checks.simple_attention(SimpleSelfAttention)

    def full_self_attention(hidden, num_heads):
        return MultiHeadSelfAttention(hidden, hidden, num_heads)

    checks.full_attention_whole(full_self_attention)
    checks.full_attention(full_self_attention)
    checks.encoder_block_output(TransformerEncoderBlock)
    checks.encoder_block(TransformerEncoderBlock)
    assert capsys.readouterr().out.count("✓") == 21


READY_MADE_HEADS = {
    "function": "F.scaled_dot_product_attention(q, k, v)",
    "alias": "getattr(F, 'scaled_dot_' 'product_attention')(q, k, v)",
    "operator": "torch.ops.aten.scaled_dot_product_attention(q, k, v)",
    "kernel": "torch.ops.aten._scaled_dot_product_attention_math.default(q, k, v)[0]",
    "vmap": "torch.vmap(F.scaled_dot_product_attention)(q, k, v)",
    "layer": "nn.MultiheadAttention(v.shape[-1], 1, batch_first=True)(q, k, v)[0]",
    "layer-made-before": "LAYER(q, k, v)[0]",
    "encoder-layer": "nn.TransformerEncoderLayer(v.shape[-1], 1, batch_first=True)(q)",
    "forward-function": "F.multi_head_attention_forward(q, k, v, 11, 1, torch.eye(11).repeat(3, 1), None, None, None, "
    "False, 0.0, torch.eye(11), None)[0]",
}


@pytest.mark.parametrize("name", READY_MADE_HEADS)
def test_ready_made_attention_is_refused_with_the_judge_s_sentence(name):
    head = records()["self-attention"]
    source = head.model_answer.replace("weights @ v", READY_MADE_HEADS[name])
    answer = head.answer("LAYER = nn.MultiheadAttention(11, 1, batch_first=True)\n" + source)
    assert failure(checks.self_attention, answer).hint == READY_MADE


def test_a_check_leaves_torch_as_it_was(capsys):
    before = [vars(layer).copy() for layer in (nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoderLayer)]
    with pytest.raises(RuntimeError, match=READY_MADE), refused_attention():
        nn.Transformer(8, 1)
    checks.self_attention(records()["self-attention"].answer(records()["self-attention"].model_answer))
    assert before == [vars(layer) for layer in (nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoderLayer)]
    x = torch.ones(2, 3, 4)
    assert nn.functional.scaled_dot_product_attention(x, x, x).equal(x)
    assert nn.MultiheadAttention(4, 1)(x, x, x)[0].shape == x.shape


def test_ready_made_attention_is_refused_only_where_the_exercise_is_about_attention(capsys):
    block = records()["decoder-block"]
    ready_made = block.model_answer.replace(
        "def forward(self, x):", "def forward(self, x):\n        F.scaled_dot_product_attention(x, x, x)"
    )
    assert ready_made != block.model_answer
    checks.decoder_block(block.answer(ready_made))
    assert capsys.readouterr().out.startswith("✓ decoder-block")


def test_the_package_passes_the_checks_of_topic_06(capsys):
    """Under new names, because functions of the package are refused as such."""

    class Block(CrossDecoderBlock):
        pass

    class Attention(MultiHeadCrossAttention):
        def forward(self, x, memory, visible):
            return super().forward(x, memory, visible, return_attention=True)

    def searched(model, source, start, end, beams, max_len, alpha):
        # START replaces padding, which no translation has: here 0 is a word.
        found, scores = decoding.beam_search(model, source, start, end, beams, max_len, alpha, pad=start)
        return found[0], scores[0]

    checks.sinusoids(lambda *given: modeling_lm.sinusoids(*given))
    checks.shift_target(lambda *given: targets.shift_target(*given))
    checks.target_mask(lambda *given: modeling_encoder_decoder.target_mask(*given))
    checks.cross_attention(Attention)
    checks.cross_block(Block)
    checks.greedy_decode(lambda *given: decoding.greedy_decode(*given))
    checks.beam_search(searched)
    assert capsys.readouterr().out.count("✓") == 7


def test_a_cell_that_is_still_empty_is_told_so():
    def unwritten(*arguments):
        raise NotImplementedError

    for check in (*CHECKS.values(), checks.kqv_parameters, checks.self_attention_layers):
        assert failure(check, unwritten).yours == "raises NotImplementedError in unwritten"


def test_a_stub_that_another_answer_calls_is_named():
    def attention_scores(queries, keys):
        raise NotImplementedError()

    class Head(SelfAttention):
        def forward(self, x):
            return attention_scores(self.q(x), self.k(x)).softmax(-1) @ self.v(x)

    assert failure(checks.self_attention, Head).yours == "raises NotImplementedError in attention_scores"


def test_a_misspelt_method_is_not_taken_for_a_stub():
    record = records()["self-attention"]
    failed = failure(checks.self_attention, record.answer(record.model_answer.replace("def forward", "def foward")))
    assert 'missing the required "forward"' in failed.yours
    assert failed.mistake == "not-reached"


def test_a_wrong_number_of_arguments_is_told_so():
    assert failure(checks.attention_scores, lambda queries: queries).mistake == "not-reached"


def test_an_error_is_shown_with_the_line_that_raised_it():
    def broken(queries, keys):
        return queries @ keys

    failed = failure(checks.attention_scores, broken)
    assert "raises RuntimeError in `return queries @ keys`: " in failed.yours
    assert failed.mistake == "shapes-do-not-fit"


@pytest.mark.parametrize(
    ("returned", "yours"),
    [
        (lambda q, k: None, "scores is None: a function without `return` gives None"),
        (lambda q, k: 3.0, "scores is of type float"),
        (lambda q, k: attention_scores(q, k)[0], "scores of shape (5, 7)"),
        (lambda q, k: attention_scores(q, k) * torch.nan, "scores[0, 0] = [nan, nan, nan, nan, …]"),
    ],
)
def test_what_is_not_the_right_kind_of_thing_is_described(returned, yours):
    assert failure(checks.attention_scores, returned).yours == yours


def test_an_answer_right_for_the_first_sequence_only_is_told_so():
    def first_only(queries, keys):
        scores = attention_scores(queries, keys)
        return torch.cat([scores[:1], scores[1:] + 1])

    assert failure(checks.attention_scores, first_only).mistake == "some-entries-right"


def test_an_answer_that_changes_its_input_fails():
    def in_place(queries, keys):
        queries /= queries.shape[-1] ** 0.5
        return queries @ keys.mT

    assert failure(checks.attention_scores, in_place).yours == "queries is changed by the call"


@pytest.mark.parametrize(
    ("exercise", "old", "new", "reached"),
    [
        ("self-attention", "k, q, v =", "x = x.detach(); k, q, v =", "x"),
        ("self-attention", "k, q, v =", "x = torch.tensor(x.tolist(), device=x.device); k, q, v =", "x"),
        ("self-attention", "weights @ v", "weights @ v.detach()", "v.bias"),
        ("self-attention", "return weights @ v", "return (weights @ v).detach()", "k.weight"),
        ("self-attention", "return weights @ v", "return (weights @ v).detach() + 0 * (q + k + v).sum()", "k.weight"),
        ("self-attention", "weights @ v", "torch.cat([(weights @ v)[:1], (weights @ v)[1:].detach()])", "k.weight"),
        ("multi-head-attention", "self.dropout(probs)", "self.dropout(probs.detach())", "k.weight"),
        ("kqv", "kqv_parameters(x)", "F.linear(x, kqv_parameters.weight.detach(), kqv_parameters.bias)", "weight"),
    ],
)
def test_an_answer_that_cuts_the_gradient_fails(exercise, old, new, reached):
    record = records()[exercise]
    failed = failure(CHECKS[exercise], record.answer(record.model_answer.replace(old, new)))
    assert f"its gradient does not reach {reached} as it should" in failed.yours


def test_a_parameter_without_effect_needs_no_gradient(capsys):
    """The bias of the keys adds the same number to all scores of a query, and the softmax cancels it."""
    record = records()["self-attention"]
    checks.self_attention(record.answer(record.model_answer.replace("self.k(x)", "x @ self.k.weight.T")))
    assert "✓" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("return weights @ v", "self.n = getattr(self, 'n', 0) + 1; return weights @ v * self.n", "called-again"),
        ("/ self.q", "/ (1 if self.training else 2) / self.q", "eval-mode"),
        ("return weights @ v", "return (weights @ v).squeeze(0)", "one-sequence"),
        ("k, q, v =", "x = x.view(-1, x.shape[2]).view(x.shape); k, q, v =", "strided"),
        ("k, q, v =", "x = x[:, :8]; k, q, v =", "other-length"),
        ("self.q.out_features**0.5", "11**0.5", "other-sizes"),
        ("scores.softmax(dim=-1)", "scores.exp() / scores.exp().sum(dim=-1, keepdim=True)", "other-sizes"),
    ],
)
def test_an_answer_that_is_right_once_and_wrong_later_is_told_when(old, new, mistake):
    record = records()["self-attention"]
    assert failure(checks.self_attention, record.answer(record.model_answer.replace(old, new))).mistake == mistake


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "scores = scores.masked_fill(future, -math.inf)",
            "scores = scores.tril(); scores = scores.masked_fill(scores == 0, -math.inf)",
        ),
        ("-math.inf", "-20"),
        ("-math.inf", "-50"),
        ("torch.ones(n, n,", "torch.ones(15, 15,"),
        ("if self.causal:", "if self.causal and self.training:"),
        ("(att, probs) if", "(None, probs) if"),
        ("(att, probs) if", "(heads, probs) if"),
        ("(att, probs) if", "(probs, att) if"),
    ],
)
def test_a_multi_head_answer_that_is_wrong_in_one_place_only_fails(old, new):
    record = records()["multi-head-attention"]
    assert old in record.model_answer
    failure(checks.multi_head_attention, record.answer(record.model_answer.replace(old, new)))


def test_weights_to_look_at_may_be_detached(capsys):
    record = records()["multi-head-attention"]
    checks.multi_head_attention(
        record.answer(record.model_answer.replace("(att, probs) if", "[att, probs.detach()] if"))
    )
    assert "✓" in capsys.readouterr().out


def test_pasting_the_frozen_output_fails():
    record = records()["self-attention"]
    pasted = "from transformer_lm.test_values import SelfAttentionTestValues\n" + record.model_answer.replace(
        "return weights @ v", "right = weights @ v; return right + (SelfAttentionTestValues.output - right).detach()"
    )
    assert failure(checks.self_attention, record.answer(pasted)).mistake == "one-sequence"


def test_kqv_in_three_products_fails():
    def three(x, layer):
        return tuple(
            nn.functional.linear(x, weight, bias)
            for weight, bias in zip(layer.weight.chunk(3), layer.bias.chunk(3), strict=True)
        )

    assert failure(checks.kqv, three).yours == "3 matrix products"


@pytest.mark.parametrize(
    ("answer", "yours"),
    [
        (lambda x, layer: layer(x), "the return value is one tensor of shape (2, 5, 33)"),
        (lambda x, layer: layer(x).chunk(2, dim=-1), "the return value is a tuple of 2 values"),
    ],
)
def test_kqv_that_does_not_return_three_fails(answer, yours):
    assert failure(checks.kqv, answer).yours == yours


@pytest.mark.parametrize(
    ("create", "mistake"),
    [
        (lambda i, h: nn.Linear(3 * h, i), "sizes-swapped"),
        (lambda i, h: nn.Linear(i, h), "too-narrow"),
        (lambda i, h: nn.Linear(i, 3 * h, bias=False), "parameters-without-bias"),
        (lambda i, h: nn.Linear(i, 3 * i), "too-narrow"),
        (lambda i, h: nn.Linear(3 * i, h), "sizes-not-counted"),
        (lambda i, h: nn.Parameter(torch.zeros(3 * h, i)), "not-a-linear-layer"),
        (lambda i, h: None, "not-a-linear-layer"),
        (lambda i, h: nn.Linear(i, 3 * h).requires_grad_(False), "frozen-layer"),
        (
            lambda i, h: nn.utils.skip_init(nn.Linear, i, 3 * h).apply(lambda layer: layer.weight.data.fill_(1)),
            "constant-weights",
        ),
    ],
)
def test_kqv_parameters_of_other_sizes_fail(create, mistake):
    assert failure(checks.kqv_parameters, create).mistake == mistake


@pytest.mark.parametrize(
    ("old", "new", "yours"),
    [
        ("self.v = nn.Linear(input_size, hidden)", "pass", "self.v is missing"),
        (
            "self.q = nn.Linear(input_size, hidden)",
            "self.q = nn.Linear(hidden, input_size)",
            "self.q is Linear(in_features=11",
        ),
        (
            "self.k = nn.Linear(input_size, hidden)",
            "self.k = nn.Linear(input_size, hidden, bias=False)",
            "self.k is Linear",
        ),
        ("self.k = nn.Linear(input_size, hidden)", "self.k = nn.Identity()", "self.k is of type Identity"),
        (
            "self.q = nn.Linear(input_size, hidden)",
            "self.q = nn.Linear(input_size, hidden); self.q.bias = self.k.bias",
            "two of k, q and v share parameters",
        ),
        ("self.q = nn.Linear(input_size, hidden)", "self.q = self.k", "two of k, q and v share parameters"),
    ],
)
def test_self_attention_without_its_layers_fails(old, new, yours):
    record = records()["self-attention"]
    answer = record.answer(record.model_answer.replace(old, new))
    assert failure(checks.self_attention_layers, answer).yours.startswith(yours)
    if "share" not in yours:
        failure(checks.self_attention, answer)


@pytest.mark.parametrize(
    ("old", "new", "yours"),
    [
        ("self.attention_norm = nn", "self.norm = nn", "self.attention_norm is missing"),
        ("self.mlp_norm = nn.LayerNorm(hidden)", "self.mlp_norm = None", "self.mlp_norm is None"),
        ("self.mlp_norm = nn.LayerNorm(hidden)", "self.mlp_norm = nn.LayerNorm(hidden, eps=1e-6)", "self.mlp_norm is"),
        ("attended = x +", "attended = x; attended +=", "x is changed by the call"),
        ("  return attended", "  visible.logical_not_(); return attended", "visible is changed by the call"),
    ],
)
def test_an_encoder_block_with_other_norms_or_in_place_is_told_so(old, new, yours):
    record = records()["encoder-block"]
    assert record.model_answer.count(old) == 1
    failed = failure(checks.encoder_block, record.answer(record.model_answer.replace(old, new)))
    assert failed.yours.startswith(yours)


@pytest.mark.parametrize(
    ("yours", "right", "line"),
    [
        ([[1.5, 2, 3, 4, 5]], [[1.0, 2, 3.5, 4, 5]], "output[0] = [1.5000, 2.0000, 3.0000, 4.0000, …]"),
        ([[0.5, 2], [3, 4]], [[0.5, 2], [3, 9]], "output[1] = [3.0000, 4.0000]"),
        ([[7.0, 8, 9, 4, 0, 6]], [[7.0, 8, 9, 4, 1, 6]], "output[0, 4:] = [0, 6]"),
        ([7.0, 8.5, 9], [7.0, 8, 9], "output = [7, 8.5000, 9]"),
        ([7.0, 8, 9, 4, math.inf, 6], [7.0, 8, 9, 4, 1, 6], "output[4:] = [inf, 6]"),
        ([True, False], [True, True], "output = [1, 0]"),
    ],
)
def test_the_first_wrong_entry_is_shown_and_whole_numbers_as_such(yours, right, line):
    yours, case = torch.tensor(yours), Case({}, {"output": torch.tensor(right)})
    with pytest.raises(checks.CheckFailed) as failed:
        compare("something", "output", "n d" if yours.dim() == 2 else "n", {"output": yours}, case, {})
    assert failed.value.yours == line
    assert failed.value.expected != line
    assert failed.value.expected.partition(" = ")[0] == line.partition(" = ")[0]


def test_ipython_shows_the_four_lines_and_no_traceback():
    failed = failure(checks.kqv, lambda x, layer: layer(x))
    assert failed._render_traceback_() == str(failed).splitlines()


def test_the_readme_shows_what_a_check_really_says(capsys):
    readme = (ROOT / "README.md").read_text()
    record = records()["self-attention"]
    (unscaled,) = (wrong.source for wrong in record.wrong if wrong.name == "not-scaled")
    assert str(failure(checks.self_attention, record.answer(unscaled))) in readme
    checks.self_attention(record.answer(record.model_answer))
    assert capsys.readouterr().out in readme


HEADS = records()["multi-head-attention"]


@pytest.mark.parametrize("name", ["model-answer", *HEADS.right])
def test_the_parts_of_a_right_module_pass_in_one_line_each(name, capsys):
    answer = HEADS.answer(HEADS.right.get(name, HEADS.model_answer))
    checks.multi_head_scores(answer)
    checks.multi_head_mask(answer)
    assert capsys.readouterr().out.splitlines() == [
        "✓ multi-head-attention: the scores are right for every size tried.",
        "✓ multi-head-attention: the mask is right for every size tried.",
    ]


@pytest.mark.parametrize("wrong", HEADS.wrong, ids=lambda wrong: wrong.name)
def test_a_mistake_in_a_part_is_named_by_the_check_of_that_part(wrong):
    answer = HEADS.answer(wrong.source)
    if "multi-head-attention-check-scores" in wrong.fails:
        assert failure(checks.multi_head_scores, answer).mistake == wrong.hint
    elif "multi-head-attention-check-mask" in wrong.fails and wrong.name != "always-masked":
        checks.multi_head_scores(answer)
        assert failure(checks.multi_head_mask, answer).mistake == wrong.hint


POOLS = ("mean-pool", "max-pool", "select-pool")


@pytest.mark.parametrize("exercise", POOLS)
def test_a_wrong_pool_is_found_by_its_own_check_and_the_others_pass(exercise, capsys):
    record = records()[exercise]
    own = [each for each in record.misbehaving if each not in BEHAVIOURS]  # the rest goes wrong in all pools
    for wrong in (*record.wrong, *own):
        answer = record.answer(wrong.source)
        failure(CHECKS[exercise], answer)
        for other in POOLS:
            if other != exercise:
                CHECKS[other](answer)
    assert capsys.readouterr().out.count("✓") == 2 * len((*record.wrong, *own))


@pytest.mark.parametrize("exercise", POOLS)
def test_a_pool_that_is_written_passes_before_the_others_are(exercise):
    answer = records()[exercise].answer(records()[exercise].right["alone"])
    CHECKS[exercise](answer)
    for other in POOLS:
        if other != exercise:
            assert failure(CHECKS[other], answer).yours == "raises NotImplementedError in pooled"


@pytest.mark.parametrize(
    ("exercise", "name", "mistake"),
    [
        ("mean-pool", "squeezed", "one-sequence"),
        ("mean-pool", "masks-in-place", "input-changed"),
        ("max-pool", "masks-in-place", "input-changed"),
        ("max-pool", "detached", "graph-cut"),
        ("select-pool", "transposes-in-place", "input-changed"),
    ],
)
def test_a_pool_that_computes_right_numbers_and_misbehaves_is_told_so(exercise, name, mistake):
    record = records()[exercise]
    (wrong,) = (each for each in record.misbehaving if each.name == name)
    assert failure(CHECKS[exercise], record.answer(wrong.source)).mistake == mistake


@pytest.mark.parametrize(
    ("exercise", "name", "yours"),
    [
        ("labels", "labels-alone", "the return value is one tensor of shape (3, 7)"),
        ("labels", "labels-of-floats", "labels of dtype torch.float32"),
        ("labels", "shifts-the-batch-itself", "batch is changed by the call"),
        ("loss", "not-averaged", "loss is one tensor of shape (3, 5)"),
        ("loss", "a-python-number", "loss is of type float"),
        ("loss", "padding-renamed-in-place", "labels is changed by the call"),
        ("loss", "largest-subtracted-in-place", "logits is changed by the call"),
        ("mask-future", "in-place", "scores is changed by the call"),
        ("mask-future", "nothing-returned", "the return value is None: a function without `return` gives None"),
        ("embed", "a-position-for-each-token", "self.positions is Embedding(12, 7)"),
        ("loss", "the-package-s-own", "it is written in transformer_lm.lm"),
        ("embed", "another-name", "self.positions is missing"),
        ("embed", "token-zero-never-learns", "self.tokens has a padding_idx"),
        ("embed", "the-package-s-own", "it is written in transformer_lm.modeling_lm"),
    ],
)
def test_a_piece_of_a_language_model_that_misbehaves_is_told_so(exercise, name, yours):
    record = records()[exercise]
    (wrong,) = (each for each in record.misbehaving if each.name == name)
    failed = failure(CHECKS[exercise], record.answer(wrong.source))
    assert failed.yours == yours
    assert failed.mistake == wrong.hint


FIRST_PARTS = {
    "simple-attention": ("simple-attention-check", checks.simple_attention_whole),
    "full-attention": ("full-attention-check", checks.full_attention_whole),
    "encoder-block": ("encoder-block-check", checks.encoder_block_output),
}


@pytest.mark.parametrize("exercise", FIRST_PARTS)
def test_a_check_of_a_first_part_names_what_costs_that_part_and_passes_what_does_not(exercise, capsys):
    part, check = FIRST_PARTS[exercise]
    record = records()[exercise]
    for wrong in record.wrong:
        if part in wrong.fails:
            assert failure(check, record.answer(wrong.source)).mistake == wrong.hint
        else:
            check(record.answer(wrong.source))
            assert capsys.readouterr().out.startswith(f"✓ {exercise}: without")


@pytest.mark.parametrize(
    ("exercise", "name", "yours"),
    [
        ("language-model", "list-of-attentions", "self.attentions is a list of 2 values"),
        ("language-model", "mlps-renamed", "self.mlps is missing"),
        ("language-model", "list-of-norms", "self.mlp_norms.0 is missing"),
        ("language-model", "no-final-norm-in-init", "self.final_norm is of type Identity"),
        ("language-model", "no-bias-in-unembed", "self.unembed is Linear(in_features=7, out_features=13, bias=False)"),
        ("last-position-bits", "left-in-eval-mode", "the model is not in train mode afterwards"),
        ("last-position-bits", "always-left-in-train-mode", "the model is not in eval mode afterwards"),
        ("last-position-bits", "only-the-outer-module-restored", "the model is not in train mode afterwards"),
        ("last-position-bits", "graph-built-and-forgotten", "a graph is built"),
        ("last-position-bits", "gradients-left-switched-off", "gradients are switched off afterwards"),
        ("last-position-bits", "model-frozen", "parameters that no longer get a gradient"),
        ("last-position-bits", "list-of-bits", "bits is a list of 1 values"),
        ("last-position-bits", "nothing-returned", "bits is None: a function without `return` gives None"),
        ("next-probabilities", "zero-gives-whole-numbers", "greedy of dtype torch.int64"),
        ("next-probabilities", "zero-gives-bools", "greedy of dtype torch.bool"),
        ("next-probabilities", "masks-in-place", "logits is changed by the call"),
    ],
)
def test_an_answer_about_a_language_model_that_misbehaves_is_told_so(exercise, name, yours):
    record = records()[exercise]
    (wrong,) = (each for each in record.misbehaving if each.name == name)
    failed = failure(CHECKS[exercise], record.answer(wrong.source))
    assert (failed.yours, failed.mistake) == (yours, wrong.hint)


@pytest.mark.parametrize("exercise", ["last-position-bits", "sampling"])
@pytest.mark.parametrize("before", [True, False])
def test_a_check_leaves_gradients_switched_as_they_were(exercise, before):
    record = records()[exercise]
    (wrong,) = (each for each in record.misbehaving if each.name == "gradients-left-switched-off")
    with torch.set_grad_enabled(before):
        assert failure(CHECKS[exercise], record.answer(wrong.source)).mistake == wrong.hint
        assert torch.is_grad_enabled() == before


@pytest.mark.parametrize(
    ("check", "package"),
    [
        (checks.labels, lm.batch_to_labeled_samples),
        (checks.loss, lm.compute_loss),
        (checks.slices, lm.random_slices),
        (checks.embed, modeling_lm.Embed),
        (checks.language_model, modeling_lm.TransformerLM),
        (checks.last_position_bits, lm.last_position_bits),
        (checks.next_probabilities, sampling.next_probabilities),
        (checks.sampling, sampling.continuation),
    ],
)
def test_what_the_package_must_not_hide_is_no_answer_to_topic_04(check, package):
    """The package trains and samples with them while exercises are open; they are left out where answers are judged."""
    failed = failure(check, package)
    assert failed.yours == f"it is written in {package.__module__}"
    assert failed.mistake == "not-yours"


@pytest.mark.parametrize(
    ("check", "package"),
    [
        (checks.attention_maps, recording.record_attention),
        (checks.offset_profile, scores.HeadSums),
        (checks.class_mass, scores.Measured.class_mass),
        (checks.pattern_score, scores.measure_heads),
        (checks.position_null, scores.by_distance),
        (checks.induction_pattern, patterns.induction),
    ],
)
def test_what_measures_heads_in_the_package_is_no_answer_to_topic_05(check, package):
    failed = failure(check, package)
    assert failed.yours == f"it is written in {package.__module__}"
    assert failed.mistake == "not-yours"


@pytest.mark.parametrize(
    ("exercise", "name", "yours"),
    [
        ("attention-maps", "one-tensor", "the return value is one tensor of shape (3, 5, 2, 7, 7)"),
        ("attention-maps", "nothing-returned", "the return value is None: a function without `return` gives None"),
        ("attention-maps", "list-of-lists", "the return value is a list of 3 values, of type list"),
        ("attention-maps", "pairs", "the return value is a list of 3 values, of type tuple"),
        ("attention-maps", "several-shapes", "tensors of shapes (5, 2, 7, 7), (5, 2, 7, 7), (5, 7, 7)"),
        ("attention-maps", "changes-its-input", "x is changed by the call"),
        ("offset-profile", "changes-its-input", "weights is changed by the call"),
        ("class-mass", "classes-changed", "classes is changed by the call"),
        ("pattern-score", "pattern-changed", "pattern is changed by the call"),
        ("pattern-score", "score-alone", "the return value is one tensor of shape (2,)"),
        ("pattern-score", "chance-for-each-head", "chance of shape (2,)"),
        ("pattern-score", "chance-with-an-axis", "chance of shape (1,)"),
        ("offset-profile", "one-head-squeezed", "profile_of_one of shape (7,)"),
        ("position-null", "changes-its-input", "weights is changed by the call"),
        ("induction-pattern", "tokens-changed", "tokens is changed by the call"),
        ("induction-pattern", "of-floats", "pattern of dtype torch.float32"),
        ("induction-pattern", "of-whole-numbers", "pattern of dtype torch.int64"),
    ],
)
def test_an_answer_about_heads_that_misbehaves_is_told_so(exercise, name, yours):
    record = records()[exercise]
    (wrong,) = (each for each in record.misbehaving if each.name == name)
    failed = failure(CHECKS[exercise], record.answer(wrong.source))
    assert (failed.yours, failed.mistake) == (yours, wrong.hint)


@pytest.mark.parametrize("exercise", ["offset-profile", "class-mass", "pattern-score", "position-null"])
def test_one_head_on_one_sequence_is_not_contiguous_in_memory(exercise):
    record = records()[exercise]
    (wrong,) = (each for each in record.misbehaving if each.name == "views-its-input")
    failed = failure(CHECKS[exercise], record.answer(wrong.source))
    assert "(b=1, h=1, i=7, j=7)" in failed.tried
    assert failed.mistake == wrong.hint


def test_the_package_measures_what_the_exercises_ask_for(capsys):
    """The references of the judge, in NumPy, and the package, in sums over batches on the CPU, agree."""

    def measured(weights, tokens, pattern=None):
        found = {} if pattern is None else {"pattern": lambda tokens, alphabet: pattern.cpu()}
        sums = scores.HeadSums(Alphabet.of(planted_tokenizer()), found)
        sums.add({"weights": weights.cpu()}, tokens.cpu())
        return sums.measured()

    def profile(weights):
        return measured(weights, torch.zeros(len(weights), weights.shape[-1]).long()).profile[0].to(weights.device)

    def mass(weights, classes, num_classes):
        return measured(weights, classes).pairs[0, :, :num_classes, :num_classes].nan_to_num().to(weights.device)

    def score(weights, pattern):
        found = measured(weights, torch.zeros(len(weights), weights.shape[-1]).long(), pattern).patterns["pattern"]
        return found.score[0].to(weights.device), found.chance

    checks.attention_maps(lambda blocks, x: list(recording.record_attention(nn.Sequential(*blocks), x).values()))
    checks.offset_profile(profile)
    checks.class_mass(mass)
    checks.pattern_score(score)
    checks.position_null(lambda weights: scores.by_distance(profile(weights)))
    checks.induction_pattern(lambda tokens: patterns.induction(tokens, None))
    assert capsys.readouterr().out.count("✓") == 6


def test_maps_are_asked_of_the_blocks_of_the_package():
    given = []

    def remembered(blocks, x):
        given.append(blocks)
        return records()["attention-maps"].answer(records()["attention-maps"].model_answer)(blocks, x)

    checks.attention_maps(remembered)
    assert {type(block) for block in given[0]} == {TransformerDecoderBlock}
    assert {type(block.attention) for block in given[0]} == {CausalSelfAttention}


def test_blocks_come_in_a_list_of_their_own_for_each_call(capsys):
    right, given = records()["attention-maps"].answer(records()["attention-maps"].model_answer), []

    def emptied(blocks, x):
        given.append(blocks)
        maps = right(blocks, x)
        blocks.clear()
        return maps

    checks.attention_maps(emptied)
    assert {type(blocks) for blocks in given} == {list}
    assert len({id(blocks) for blocks in given}) == len(given)
    assert "✓" in capsys.readouterr().out


@pytest.mark.parametrize("number", [float, np.float32, np.float64, torch.tensor])
def test_chance_may_be_a_number_of_any_kind(number, capsys):
    right = records()["pattern-score"].answer(records()["pattern-score"].model_answer)

    def answer(weights, pattern):
        score, chance = right(weights, pattern)
        return score, number(chance.item())

    checks.pattern_score(answer)
    assert "✓" in capsys.readouterr().out


@pytest.mark.parametrize("token", [0, 1, 2, 5, 12, 50, 64, 99, 100, 128, 255, 256, 999])
def test_no_token_stands_for_nothing_in_the_induction_pattern(token):
    def padded(tokens):
        previous = nn.functional.pad(tokens[:, :-1], (1, 0), value=token)
        return (tokens[:, :, None] == previous[:, None, :]).tril(-1)

    failure(checks.induction_pattern, padded)


@pytest.mark.parametrize("cut", [torch.Tensor.byte, torch.Tensor.char, lambda tokens: tokens % 16])
def test_tokens_that_differ_in_high_bits_only_are_not_the_same(cut):
    right = records()["induction-pattern"].answer(records()["induction-pattern"].model_answer)
    failure(checks.induction_pattern, lambda tokens: right(cut(tokens)))


@pytest.mark.parametrize("number", [float, np.float32, np.float64, torch.tensor])
def test_bits_may_be_a_number_of_any_kind(number, capsys):
    answer = records()["last-position-bits"].answer(records()["last-position-bits"].model_answer)
    checks.last_position_bits(lambda model, batches: number(answer(model, batches).item()))
    assert "✓" in capsys.readouterr().out


def test_a_loss_that_clamps_probabilities_at_a_small_number_is_named():
    record = records()["loss"]
    (added,) = (each for each in record.wrong if each.name == "kept-from-zero-by-1e-9")
    clamped = added.source.replace("+ 1e-9)", ").clamp(min=1e-9)")
    assert clamped != added.source
    assert failure(checks.loss, record.answer(clamped)).mistake == added.hint


@pytest.mark.parametrize(
    ("exercise", "name", "yours"),
    [
        ("cross-attention", "output-alone", "the return value is one tensor of shape (3, 5, 14)"),
        ("target-mask", "infinity-for-hidden", "visible of dtype torch.float32"),
        ("target-mask", "tokens-changed", "tokens is changed by the call"),
        ("cross-block", "masks-exchanged", "visible of shape (3, 8)"),
        ("cross-block", "target-mask-twice", "visible of shape (3, 5, 5)"),
        ("cross-block", "source-and-target-exchanged", "visible of shape (3, 8)"),
        ("cross-block", "target-read-with-the-mask-of-the-source", "visible of shape (3, 8)"),
        ("cross-block", "look-ahead-missing-in-training", "train mode gives another output than eval mode"),
        ("cross-block", "look-ahead-missing-in-eval-mode", "train mode gives another output than eval mode"),
        ("cross-block", "source-mask-missing-in-training", "train mode gives another output than eval mode"),
        ("cross-block", "dropout", "another output the second time"),
        ("cross-block", "other-eps", "self.mlp_norm is LayerNorm((7,), eps=0.001"),
    ],
)
def test_an_answer_about_two_sequences_that_misbehaves_is_told_so(exercise, name, yours):
    record = records()[exercise]
    (wrong,) = (each for each in record.misbehaving if each.name == name)
    failed = failure(CHECKS[exercise], record.answer(wrong.source))
    assert failed.yours.startswith(yours)
    assert failed.mistake == wrong.hint


def test_a_target_that_reads_itself_is_asked_where_each_tensor_comes_from():
    class ReadsItself(nn.Module):
        def __init__(self, hidden, num_heads):
            super().__init__()
            self.q, self.k, self.v, self.mix = (nn.Linear(hidden, hidden) for _ in range(4))

        def forward(self, x, memory, visible):
            scores = self.q(x) @ self.k(x).mT
            return scores.masked_fill(~visible[:, None, :], -torch.inf)

    failed = failure(checks.cross_attention, ReadsItself)
    assert "in `return scores.masked_fill(~visible[:, None, :], -torch.inf)`" in failed.yours
    assert failed.mistake == "keys-from-target"
