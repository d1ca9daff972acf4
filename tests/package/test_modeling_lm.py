"""Tests of `modeling_lm.py`. Sizes: (layers, b, h, n, dh) = (2, 3, 5, 6, 4), so hidden is 20; MLP 7 wide, 11 tokens."""

import copy
import itertools
import math
import re
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_lm.lm import compute_loss
from transformer_lm.modeling_lm import MLPS, NORMS, POSITIONS, LMConfig, TransformerLM
from transformer_lm.positions import ROTARY_BASE, sinusoids, turned, turns
from transformer_lm.shapes import ShapeError

LAYERS, B, H, N, DH, V, WIDTH = 2, 3, 5, 6, 4, 11, 7
HIDDEN = H * DH
SIZES = {"max_len": N, "hidden": HIDDEN, "num_layers": LAYERS, "num_heads": H, "mlp_hidden": WIDTH}
SPLITS = [(1,) * N, (3, 1, 2), (5, 1)]


@pytest.fixture(autouse=True)
def _in_float64():
    """Make all tensors float64: then a difference is a mistake, not rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(V, (B, N), generator=torch.Generator().manual_seed(1))


def model_of(**options) -> TransformerLM:
    """Return a model with random parameters only: a 0 or 1, as in a new model, could be left out unnoticed."""
    torch.manual_seed(0)
    model = TransformerLM(LMConfig(V, **SIZES | options))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def numpy_logits(model: TransformerLM, sequence: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return scores (n, v) and attention weights (layers, h, i, j) of one sequence, position by position in NumPy."""
    config, n = model.config, len(sequence)
    w = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        if config.norm == "rms":
            return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"]
        return standardised(x) * w.get(f"{name}.weight", 1) + w.get(f"{name}.bias", 0)

    x = w["embed.tokens.weight"][sequence]
    if config.positions == "learned":
        x = x + w["embed.positions.weight"][:n]
    if config.positions == "sinusoidal":
        x = x + numpy_waves(n, config.hidden)
    if config.smear:
        x = np.array([x[i] + (w["smear"] * x[i - 1] if i else 0) for i in range(n)])
    maps = np.zeros((config.num_layers, config.num_heads, n, n))
    for layer in range(config.num_layers):
        block = f"blocks.{layer}"
        source = norm(f"{block}.attention_norm", x) if config.norm_first else x
        q, k, v = (linear(f"{block}.attention.{letter}", source) for letter in "qkv")  # (n, hidden)
        found = np.zeros_like(x)
        for head in range(config.num_heads):
            own = slice(head * DH, (head + 1) * DH)
            queries, keys = q[:, own], k[:, own]
            if config.query_key_norm:
                queries, keys = standardised(queries), standardised(keys)
            if config.positions == "rotary":
                queries, keys = numpy_turned(queries), numpy_turned(keys)
            for i in range(n):
                scores = keys[: i + 1] @ queries[i] / math.sqrt(DH)
                if config.positions == "relative":
                    scores = scores + [w[f"{block}.attention.distances"][head, i - j] for j in range(i + 1)]
                weights = np.exp(scores - scores.max())
                maps[layer, head, i, : i + 1] = weights / weights.sum()
            found[:, own] = maps[layer, head] @ v[:, own]
        x = config.residual * x + linear(f"{block}.attention.mix", found)
        if not config.norm_first:
            x = norm(f"{block}.attention_norm", x)
        source = norm(f"{block}.mlp_norm", x) if config.norm_first else x
        wide = linear(f"{block}.mlp.up", source)
        if config.mlp == "gelu":
            bent = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
        elif config.mlp == "swiglu":
            gate = linear(f"{block}.mlp.gate", source)
            bent = gate / (1 + np.exp(-gate)) * wide
        else:
            bent = np.maximum(wide, 0) ** (1 if config.mlp == "relu" else 2)
        x = config.residual * x + linear(f"{block}.mlp.down", bent)
        if not config.norm_first:
            x = norm(f"{block}.mlp_norm", x)
    if config.norm_first:
        x = norm("final_norm", x)
    table = w["embed.tokens.weight"] if config.tied else w["unembed.weight"]
    return x @ table.T + w.get("unembed.bias", 0), maps


def standardised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def numpy_waves(n: int, hidden: int) -> np.ndarray:
    """Return the sinusoids by the formula of the paper: PE(pos, 2i) = sin(pos / 10000^(2i / d)), and cos for 2i + 1."""
    waves = np.zeros((n, hidden))
    for position, column in itertools.product(range(n), range(hidden)):
        angle = position / 10_000 ** ((column - column % 2) / hidden)
        waves[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return waves


def numpy_turned(x: np.ndarray) -> np.ndarray:
    """Return (n, dh) as complex numbers times exp(i * angle): a number of the first half is real, of the second not."""
    half = x.shape[1] // 2
    angles = np.arange(len(x))[:, None] * ROTARY_BASE ** (-np.arange(half) / half)
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=1)


def read_in_portions(model: TransformerLM, tokens: Tensor, split: tuple[int, ...]) -> Tensor:
    cache = model.new_cache(len(tokens))
    return torch.cat([model(portion, cache) for portion in tokens.split(split, dim=1)], dim=1)


def assert_same(ours: Tensor, theirs: Tensor | np.ndarray, message: object = None) -> None:
    torch.testing.assert_close(ours, torch.as_tensor(theirs), rtol=0, atol=1e-10, msg=lambda text: f"{message}: {text}")


# ------------------------------------------------------------------ equals an independent reference


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("norm_first", [True, False])
def test_every_combination_of_options_is_the_formula_and_a_language_model(positions, norm_first, tokens):
    others = itertools.product(MLPS, *[(True, False)] * 3)
    for (mlp, query_key_norm, smear, tied), norm in zip(others, itertools.cycle(NORMS), strict=False):
        options = {"norm": norm, "mlp": mlp, "query_key_norm": query_key_norm, "smear": smear, "tied": tied}
        bare = smear != tied  # so that biases are there in half of all cases
        model = model_of(positions=positions, norm_first=norm_first, bias=not bare, output_bias=bare, **options)

        logits = model(tokens)
        assert logits.shape == (B, N, V), options
        row, place = 1, 3
        expected, maps = numpy_logits(model, tokens[row].tolist())
        assert_same(logits[row], expected, options)

        # A gradient reaches every parameter, except a vector added to all keys: a softmax cancels it.
        logits.square().sum().backward()
        still = {name for name, weights in model.named_parameters() if weights.grad.abs().max() < 1e-9}
        seen = positions == "rotary" or query_key_norm or bare
        assert still == (set() if seen else {f"blocks.{layer}.attention.k.bias" for layer in range(LAYERS)}), options

        with torch.no_grad():
            # A token that changes affects neither the past nor another sequence, but all later positions.
            changed = tokens.clone()
            changed[row, place] = (changed[row, place] + 1) % V
            moved = (model(changed) - logits).abs().amax(-1) > 1e-10  # (b, n)
            assert moved.nonzero().tolist() == [[row, late] for late in range(place, N)], options

            for split in SPLITS:
                assert_same(read_in_portions(model, tokens, split), logits.detach(), (split, options))

            cache = model.new_cache(B)
            first = [model(tokens[:, :1], cache)[:, 0]]
            alone = first + [model.read_one(tokens[:, place : place + 1], cache) for place in range(1, N)]
            assert_same(torch.stack(alone, dim=1), logits.detach(), options)

            weights = torch.stack(model.attention_maps(tokens))
            assert weights.shape == (LAYERS, B, H, N, N)
            assert_same(weights.sum(-1), torch.ones(LAYERS, B, H, N), options)
            assert_same(weights[:, row], maps, options)
            x = model._embedded(tokens)
            for block in model.blocks:
                fused, (x, _) = block(x), block(x, return_attention=True)
                assert_same(fused, x, options)


@pytest.mark.parametrize("norm_first", [True, False])
def test_without_residual_connections_what_a_part_finds_is_all_that_goes_on(norm_first, tokens):
    model = model_of(norm_first=norm_first, residual=False).eval()
    logits = model(tokens).detach()
    for row in range(B):
        assert_same(logits[row], numpy_logits(model, tokens[row].tolist())[0])
    assert (logits - model_of(norm_first=norm_first)(tokens)).abs().max() > 0.1
    assert_same(read_in_portions(model, tokens, SPLITS[1]).detach(), logits)
    cache = model.new_cache(B)
    with torch.no_grad():
        model(tokens[:, :-1], cache)
        assert_same(model.read_one(tokens[:, -1:], cache), logits[:, -1])


def test_logits_equal_torch_encoder_layers_behind_an_embedding_of_another_width(tokens):
    ours = model_of(norm_first=False, positions="sinusoidal", mlp="relu", tied=False, output_bias=True).eval()
    narrow = 9
    embedding, widen, output = nn.Embedding(V, narrow), nn.Linear(narrow, HIDDEN), nn.Linear(HIDDEN, V)
    layer = nn.TransformerEncoderLayer(HIDDEN, H, WIDTH, batch_first=True)
    encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).eval()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)

    weights = {"embed.tokens.weight": embedding.weight @ widen.weight.T + widen.bias}
    weights |= {f"unembed.{name}": parameter for name, parameter in output.named_parameters()}
    names = {
        "self_attn.out_proj": "attention.mix",
        "norm1": "attention_norm",
        "norm2": "mlp_norm",
        "linear1": "mlp.up",
        "linear2": "mlp.down",
    }
    for number, layer in enumerate(encoder.layers):
        block = f"blocks.{number}"
        for kind in ("weight", "bias"):
            three = getattr(layer.self_attn, f"in_proj_{kind}").chunk(3)
            weights |= {f"{block}.attention.{letter}.{kind}": part for letter, part in zip("qkv", three, strict=True)}
            for theirs, mine in names.items():
                weights[f"{block}.{mine}.{kind}"] = layer.get_parameter(f"{theirs}.{kind}")
    ours.load_state_dict(weights)

    x = widen(embedding(tokens)) + torch.tensor(numpy_waves(N, HIDDEN))
    x = encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.float64), is_causal=True)
    expected = output(x).log_softmax(-1)
    assert_same(ours(tokens).log_softmax(-1), expected)
    labels = tokens.roll(-1, dims=1)
    assert_same(compute_loss(ours(tokens), labels), F.nll_loss(expected.transpose(1, 2), labels))


def test_sinusoids_are_those_of_the_paper():
    np.testing.assert_allclose(sinusoids(50, 14), numpy_waves(50, 14), rtol=0, atol=1e-12)


def test_turning_is_multiplication_with_a_complex_number_of_length_1():
    x = torch.randn(2, 3, 7, 6)
    ours = turned(x, *turns(7, 6))
    for row, head in itertools.product(range(2), range(3)):
        np.testing.assert_allclose(ours[row, head], numpy_turned(x[row, head].numpy()), rtol=0, atol=1e-12)
    assert_same(ours.norm(dim=-1), x.norm(dim=-1))


# ------------------------------------------------------------------ keeps a property


def test_scores_of_turned_queries_and_keys_depend_on_their_distance_only():
    query, key = torch.randn(2, 1, 1, 1, DH)  # the same at all positions
    cos, sin = turns(30, DH)
    queries, keys = (turned(x.expand(1, 1, 30, DH), cos, sin)[0, 0] for x in (query, key))
    scores = queries @ keys.T  # (i, j)
    assert_same(scores[1:, 1:], scores[:-1, :-1])
    assert (scores[10, 10] - scores[10, 5]).abs() > 1e-3


def test_rotary_attention_does_not_depend_on_where_a_text_begins():
    attention = model_of(positions="rotary").blocks[0].attention
    x = torch.randn(B, 3, HIDDEN)
    before = torch.randn(B, 2, HIDDEN)
    _, near = attention(x, return_attention=True)
    _, far = attention(torch.cat((before, x), dim=1), return_attention=True)
    behind = far[..., 2:, 2:]  # among themselves: their attention to the others is left out
    assert_same(behind / behind.sum(-1, keepdim=True), near)


def test_relative_positions_add_to_a_score_what_belongs_to_the_distance():
    attention = model_of(positions="relative").blocks[0].attention
    bias = attention._bias(0, N)  # (h, i, j)
    for head, i, j in itertools.product(range(H), range(N), range(N)):
        if j <= i:
            assert bias[head, i, j] == attention.distances[head, i - j]
    assert torch.equal(attention._bias(4, N), bias[:, 4:])


@pytest.mark.parametrize("positions", POSITIONS)
def test_only_a_model_without_positions_takes_the_past_for_a_set(positions, tokens):
    model = model_of(positions=positions)
    turned_round = torch.cat((tokens[:, :-1].flip(1), tokens[:, -1:]), dim=1)
    model.blocks = model.blocks[:1]  # with a second layer it would see what earlier positions have attended to
    difference = (model(tokens)[:, -1] - model(turned_round)[:, -1]).abs().max()
    assert (difference < 1e-10) == (positions == "none")


def test_several_rows_of_a_cache_stay_apart(tokens):
    model = model_of(positions="rotary", smear=True)
    for row in range(B):
        alone = read_in_portions(model, tokens[row : row + 1], (2, 4))
        assert_same(read_in_portions(model, tokens, (2, 4))[row], alone[0])


def test_reading_with_a_cache_takes_no_new_memory_for_it(tokens):
    model = model_of()
    cache = model.new_cache(B)
    places = [memory.data_ptr() for layer in cache.layers for memory in layer]
    with torch.no_grad():
        for portion in tokens.split(1, dim=1):
            model(portion, cache)
    assert [memory.data_ptr() for layer in cache.layers for memory in layer] == places
    assert cache.length == N


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_copy_and_its_original_do_not_share_weights(positions, tokens):
    model = model_of(positions=positions, smear=True)
    model(tokens)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(tokens), model(tokens))
    assert twin.unembed.weight is twin.embed.tokens.weight
    with torch.no_grad():
        twin.unembed.weight += 1
    assert not torch.equal(twin(tokens), model(tokens))


def test_tied_models_have_one_table_and_untied_ones_two():
    tied, untied = model_of(tied=True), model_of(tied=False)
    assert tied.unembed.weight is tied.embed.tokens.weight
    assert untied.num_parameters - tied.num_parameters == V * HIDDEN
    assert sum(parameter.numel() for parameter in tied.parameters()) == tied.num_parameters


def test_the_number_of_parameters_is_that_of_a_count_by_hand():
    attention, mlp, norm = 4 * (HIDDEN + 1) * HIDDEN, 2 * HIDDEN * WIDTH + WIDTH + HIDDEN, 2 * HIDDEN
    by_hand = (V + N) * HIDDEN + LAYERS * (attention + mlp + 2 * norm) + norm
    assert model_of().num_parameters == by_hand


def test_the_mlp_is_four_times_as_wide_unless_told_otherwise():
    assert model_of(mlp_hidden=None).blocks[0].mlp.up.out_features == 4 * HIDDEN


def test_dropout_is_in_every_part_and_in_training_only(tokens):
    model = model_of(dropout=0.5)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
    # One by one: the embeddings, the attention weights, the output of attention, the output of the MLP.
    block = model.train().blocks[0]
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    assert len(dropouts) == 1 + 3 * LAYERS
    for one in (model.dropout, block.attention.dropout, block.dropout, block.mlp.dropout):
        for dropout in dropouts:
            dropout.p = 0.0
        assert torch.equal(model(tokens), model(tokens))
        one.p = 0.5
        assert not torch.equal(model(tokens), model(tokens))


def test_what_is_dropped_is_never_what_it_is_added_to():
    block = model_of(dropout=0.5).blocks[0]
    block.dropout.p = block.mlp.dropout.p = 1.0
    x = torch.randn(B, N, HIDDEN)
    assert torch.equal(block(x), x)


def test_attention_maps_are_those_before_dropout(tokens):
    model = model_of(dropout=0.5)
    assert_same(torch.stack(model.attention_maps(tokens)).sum(-1), torch.ones(LAYERS, B, H, N))


def test_a_model_moves_to_float32_and_back(tokens):
    for positions in POSITIONS:
        model = model_of(positions=positions)
        logits = model.float()(tokens)
        assert logits.dtype == torch.float32
        assert model.new_cache(B).layers[0][0].dtype == torch.float32
        torch.testing.assert_close(model.double()(tokens), logits.double(), rtol=1e-4, atol=1e-4)


def test_what_positions_need_is_neither_stored_nor_learned():
    for positions in ("sinusoidal", "rotary", "none"):
        assert model_of(positions=positions).state_dict().keys() == model_of(positions="none").state_dict().keys()


# ------------------------------------------------------------------ new weights


def spread(weights: Tensor) -> float:
    return weights.std().item()


@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_weights_of_gpt2_are_narrow_and_narrower_where_they_add_up(positions):
    torch.manual_seed(0)
    config = LMConfig(300, 100, hidden=120, num_layers=3, num_heads=2, positions=positions, mlp="swiglu", tied=False)
    model = TransformerLM(config)
    for name, parameter in model.named_parameters():
        if "norm.weight" in name:
            assert (parameter == 1).all(), name
        elif name.endswith(("bias", "distances")):
            assert (parameter == 0).all(), name
        else:
            expected = 0.02 / math.sqrt(6) if name.endswith(("mix.weight", "down.weight")) else 0.02
            assert spread(parameter) == pytest.approx(expected, rel=0.05), name
            assert abs(parameter.mean()) < 0.001, name


@pytest.mark.parametrize("options", [{}, {"norm_first": False}, {"output_bias": False, "norm": "plain", "bias": False}])
def test_with_an_output_of_0_every_token_is_equally_likely(options, tokens):
    model = TransformerLM(LMConfig(V, **SIZES, tied=False, init="zero_output", **options))
    assert compute_loss(model(tokens), tokens).item() == pytest.approx(math.log(V), abs=1e-15)
    assert (model(tokens) == 0).all()
    model = TransformerLM(LMConfig(3000, **SIZES, tied=False, init="zero_output"))
    assert spread(model.embed.tokens.weight) == pytest.approx(1, rel=0.05)  # as large as the output of a norm


def test_the_scheme_of_torch_is_what_its_layers_do_by_themselves():
    torch.manual_seed(0)
    model = TransformerLM(LMConfig(300, 100, hidden=120, num_layers=1, num_heads=2, tied=False, init="torch"))
    assert spread(model.embed.tokens.weight) == pytest.approx(1, rel=0.05)
    for layer in (model.unembed, model.blocks[0].mlp.up):
        assert layer.weight.abs().max() <= 1 / math.sqrt(120)
        assert spread(layer.weight) == pytest.approx(1 / math.sqrt(3 * 120), rel=0.05)  # uniform
    assert spread(model.blocks[0].mlp.up.bias) > 0.01


def test_drawing_weights_anew_leaves_nothing_of_the_old_ones():
    for positions in ("learned", "relative"):
        model = model_of(positions=positions, smear=True, norm="rms", output_bias=True)
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        model.init_weights("gpt2")
        for name, parameter in model.named_parameters():
            assert (parameter != before[name]).all(), name


# ------------------------------------------------------------------ refuses bad input with the right words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vocab_size": 0}, "vocab_size must be a whole number from 1 on, got 0."),
        ({"max_len": 1.5}, "max_len must be a whole number from 1 on, got 1.5."),
        ({"hidden": True}, "hidden must be a whole number from 1 on, got True."),
        ({"num_layers": -1}, "num_layers must be a whole number from 1 on, got -1."),
        ({"num_heads": "4"}, "num_heads must be a whole number from 1 on, got '4'."),
        ({"mlp_hidden": 0}, "mlp_hidden must be a whole number from 1 on, got 0."),
        ({"num_heads": 3}, "num_heads must divide hidden, got num_heads=3 and hidden=20."),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0."),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1."),
        ({"dropout": math.nan}, "dropout must be at least 0 and below 1, got nan."),
        ({"dropout": "0.1"}, "dropout must be at least 0 and below 1, got '0.1'."),
        ({"dropout": True}, "dropout must be at least 0 and below 1, got True."),
        ({"positions": "absolute"}, "positions must be one of learned, sinusoidal, rotary, relative, none, got 'abs"),
        ({"norm": None}, "norm must be one of layer, rms, plain, got None."),
        ({"mlp": "glu"}, "mlp must be one of relu, gelu, relu_squared, swiglu, got 'glu'."),
        ({"init": "zero"}, "init must be one of torch, gpt2, zero_output, got 'zero'."),
        ({"positions": "rotary", "num_heads": 4}, "rotary positions must have heads of even width, got 5."),
        ({"positions": "sinusoidal", "hidden": 15}, "sinusoidal positions must have an even hidden, got 15."),
        ({"init": "zero_output"}, "init must not be zero_output if tied, got both: all embeddings would be 0."),
        *(
            ({name: 1}, f"{name} must be True or False, got 1.")
            for name in ("norm_first", "query_key_norm", "bias", "tied", "output_bias", "smear", "residual")
        ),
    ],
)
def test_impossible_settings_are_refused(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        LMConfig(**{"vocab_size": V} | SIZES | options)


def test_a_config_does_not_change():
    with pytest.raises(FrozenInstanceError):
        LMConfig(V).hidden = 5


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match="scheme must be one of torch, gpt2, zero_output, got 'xavier'"):
        model_of().init_weights("xavier")


def test_too_many_tokens_are_refused_with_those_in_the_cache(tokens):
    model = model_of()
    with pytest.raises(ShapeError, match="tokens must have at most max_len=6 positions, got n=7"):
        model(torch.zeros(B, N + 1, dtype=torch.long))
    cache = model.new_cache(B)
    model(tokens[:, :4], cache)
    with pytest.raises(ShapeError, match="at most max_len=6 positions, got n=3 after 4 in the cache"):
        model(tokens[:, :3], cache)
    assert cache.length == 4


def test_a_cache_for_another_number_of_sequences_is_refused(tokens):
    with pytest.raises(ShapeError, match=r"axis b must have one size, got 3 in tokens \(b=3, n=6\) and 2 in cache"):
        model_of()(tokens, model_of().new_cache(2))


def test_tokens_without_a_batch_are_refused(tokens):
    with pytest.raises(ShapeError, match=r"tokens must have the 2 axes \(b, n\), got 1"):
        model_of()(tokens[0])


def test_padding_is_refused(tokens):
    with pytest.raises(ValueError, match="visible must be None: a language model reads texts without padding"):
        model_of().blocks[0].attention(torch.zeros(B, N, HIDDEN), visible=tokens > 0)
