"""Scores compared with those of TransformerLens, on the same weights, for the three kinds of heads that it knows.

Its file of detectors is taken out of its package, functions and all, without the thirty packages that the rest needs.
"""

import ast
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from needed_data import TRANSFORMER_LENS, skip_without

from transformer_lm.heads.character_classes import Alphabet
from transformer_lm.heads.patterns import PATTERNS
from transformer_lm.heads.planted import planted_model, planted_tokenizer
from transformer_lm.heads.recording import record_attention
from transformer_lm.heads.repeats import repeated_tokens
from transformer_lm.heads.scores import HeadSums
from transformer_lm.texts.downloads import fetched

DETECTORS, TENSORS = "transformer_lens/head_detector.py", "transformer_lens/utilities/tensors.py"
THEIRS = {"previous": "previous_token_head", "duplicate": "duplicate_token_head", "induction": "induction_head"}
N = 40
TOKENIZER = planted_tokenizer()


@pytest.fixture(scope="module")
def lens() -> SimpleNamespace:
    """Return the functions of TransformerLens that make a pattern and compare weights with it."""
    skip_without("transformer-lens")
    package = zipfile.ZipFile(fetched(TRANSFORMER_LENS))
    wanted = {f"get_{name}_detection_pattern" for name in THEIRS.values()}
    wanted |= {"compute_head_attention_similarity_score", "is_square", "is_lower_triangular"}
    found: dict[str, object] = {"torch": torch, "np": np}
    for member in (TENSORS, DETECTORS):
        body = [each for each in ast.parse(package.read(member)).body if getattr(each, "name", None) in wanted]
        for function in body:  # annotations name types of the rest of the package
            for argument in (*function.args.args, *function.args.kwonlyargs):
                argument.annotation = None
        exec(compile(ast.Module(body, []), member, "exec"), found)
    assert wanted <= set(found)
    return SimpleNamespace(**found)


@pytest.fixture(scope="module")
def weights_and_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights (h, i, j) of heads of every kind, on repeated random text, where no letter is doubled."""
    model = planted_model(
        [["previous", "random", "uniform"], ["duplicate", "induction", "current"]], TOKENIZER, N, sharpness=5
    )
    tokens = repeated_tokens(TOKENIZER.vocab_size, 1, N, torch.Generator().manual_seed(2))
    return torch.cat([weights[0] for weights in record_attention(model, tokens).values()]), tokens


@pytest.mark.parametrize("name", THEIRS)
def test_scores_are_those_of_transformer_lens_over_the_queries_that_have_a_key(lens, weights_and_tokens, name):
    """It divides by all queries, we by those that have a key: in the text before the repeat there is none."""
    weights, tokens = weights_and_tokens
    pattern = getattr(lens, f"get_{THEIRS[name]}_detection_pattern")(tokens)
    mask = PATTERNS[name](tokens, Alphabet.of(TOKENIZER))
    assert torch.equal(pattern.bool(), mask[0])
    options = {"exclude_bos": False, "exclude_current_token": False, "error_measure": "mul"}
    theirs = [
        lens.compute_head_attention_similarity_score(head, detection_pattern=pattern, **options) for head in weights
    ]
    sums = HeadSums(Alphabet.of(TOKENIZER), {name: PATTERNS[name]})
    sums.add({"all heads": weights[None]}, tokens)
    found = sums.measured().patterns[name]
    ours = found.score[0] * found.queries / N
    torch.testing.assert_close(ours, torch.tensor(theirs).double(), rtol=1e-5, atol=1e-6)
    assert ours.max() > 0.4
    assert ours.argmax() == {"previous": 0, "duplicate": 3, "induction": 4}[name]


def test_after_a_doubled_letter_transformer_lens_counts_the_query_itself(lens):
    """The one difference, on purpose: attending to oneself is not induction."""
    tokens = torch.tensor([[5, 5, 7]])
    theirs = lens.get_induction_head_detection_pattern(tokens).bool()
    ours = PATTERNS["induction"](tokens, Alphabet.of(TOKENIZER))[0]
    assert (theirs ^ ours).nonzero().tolist() == [[1, 1]]
