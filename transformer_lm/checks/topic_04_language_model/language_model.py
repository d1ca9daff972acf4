"""Check of topic 04: a language model around given parts."""

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.contract import Inputs, PublicExercise, load_parameters, require_own
from transformer_lm.checks.engine.failure import CheckFailed, kind
from transformer_lm.checks.topic_02_multi_head_attention.decoder_block import RunningMean
from transformer_lm.shapes import describe

KEEP_INIT = hint("init-changed", "language-model")


def _tried_model(inputs: Inputs, output: str) -> str:
    (vocab_size, hidden), max_len = inputs["tokens_weight"].shape, len(inputs["positions_weight"])
    blocks = f"{len(inputs['attention_weight'])} attentions, mlps"
    tokens = describe("tokens", inputs["tokens"], "b n")
    return f"LanguageModel({vocab_size}, {hidden}, {max_len}, {blocks}) with given weights on {tokens}"


def _of_block(inputs: Inputs, layer: str, block: int) -> Inputs:
    """Return the weight and bias of a layer in one of the blocks."""
    return {part: inputs[f"{layer}_{part}"][block] for part in ("weight", "bias")}


def _given_parts(inputs: Inputs, hidden: int, tried: str) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return for each block the substitutes for attention and for the MLP, each a layer and a tanh."""
    attentions: list[nn.Module] = []
    mlps: list[nn.Module] = []
    for block in range(len(inputs["attention_weight"])):
        attention, mlp = RunningMean(hidden), nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh())
        load_parameters(attention.attention, _of_block(inputs, "attention", block), tried)
        load_parameters(mlp[0], _of_block(inputs, "mlp", block), tried)
        attentions.append(attention)
        mlps.append(mlp)
    return attentions, mlps


def _build_model(answer: Callable, inputs: Inputs) -> nn.Module:
    """Return the student's model with given weights, around substitutes for attention and MLP."""
    (vocab_size, hidden), max_len = inputs["tokens_weight"].shape, len(inputs["positions_weight"])
    tried = _tried_model(inputs, "logits")
    attentions, mlps = _given_parts(inputs, hidden, tried)
    model = answer(vocab_size, hidden, max_len, list(attentions), list(mlps))
    norms = [(norm, block) for norm in ("attention_norm", "mlp_norm") for block in range(len(attentions))]
    if isinstance(model, nn.Module):
        _check_lists(tried, model, {"attentions": attentions, "mlps": mlps})
        tables = {"tokens": nn.Embedding(vocab_size, hidden), "positions": nn.Embedding(max_len, hidden)}
        ends = {"final_norm": nn.LayerNorm(hidden), "unembed": nn.Linear(hidden, vocab_size)}
        between = {f"{norm}s.{block}": nn.LayerNorm(hidden) for norm, block in norms}
        _check_layers(tried, model, tables | between | ends)
    names = [f"{table}.weight" for table in ("tokens", "positions")]
    names += [f"{layer}.{part}" for layer in ("final_norm", "unembed") for part in ("weight", "bias")]
    load_parameters(model, {name: inputs[name.replace(".", "_")] for name in names}, tried)
    for norm, block in norms:
        layer = model.get_submodule(f"{norm}s.{block}")
        load_parameters(layer, _of_block(inputs, norm, block), f"self.{norm}s[{block}] of {tried}")
    return model


def _check_lists(tried: str, model: nn.Module, expected: dict[str, list[nn.Module]]) -> None:
    """Raise CheckFailed unless the model holds the given parts."""
    for name, parts in expected.items():
        theirs = getattr(model, name, None)
        if not isinstance(theirs, nn.ModuleList) or list(theirs) != parts:
            yours = f"self.{name} is {kind(theirs)}" if hasattr(model, name) else f"self.{name} is missing"
            raise CheckFailed(tried, yours, f"self.{name} is nn.ModuleList({name})", KEEP_INIT)


def _check_layers(tried: str, model: nn.Module, expected: dict[str, nn.Module]) -> None:
    """Raise CheckFailed unless the model has these layers, by names such as `mlp_norms.0`."""
    found = dict(model.named_modules(remove_duplicate=False))
    for name, layer in expected.items():
        theirs = found.get(name)
        if repr(theirs) != repr(layer):
            yours = f"self.{name} is {theirs if type(theirs) is type(layer) else kind(theirs)}"
            yours = yours if theirs else f"self.{name} is missing"
            raise CheckFailed(tried, yours, f"self.{name} is {layer}", KEEP_INIT)


def _call_model(model: nn.Module, inputs: Inputs) -> Iterator[Tensor]:
    yield model(inputs["tokens"])


LANGUAGE_MODEL = PublicExercise(
    id="language-model",
    axes={"logits": "b n v"},
    trains=("logits",),
    reads=("tokens",),
    build=_build_model,
    call=_call_model,
    tried=_tried_model,
)


def language_model(answer: Callable) -> None:
    """Check the student's `LanguageModel`, with simple substitutes for attention and MLPs."""
    require_own(answer)
    LANGUAGE_MODEL.check(answer)
