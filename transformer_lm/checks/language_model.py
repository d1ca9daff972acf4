"""Checks of topic 04: a language model around parts that it is given, and the bits of its last position."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from transformer_lm.checks.decoder_block import RunningMean
from transformer_lm.checks.exercise import Inputs, PublicExercise, load_parameters, require_own
from transformer_lm.checks.report import CheckFailed, kind
from transformer_lm.shapes import describe

# --- language-model -----------------------------------------------------------------------------

KEEP_INIT = "Keep __init__ as it was given: the check puts weights of its own into the layers that it makes."


def _tried_model(inputs: Inputs, output: str) -> str:
    (vocab_size, hidden), max_len = inputs["tokens_weight"].shape, len(inputs["positions_weight"])
    blocks = f"{len(inputs['attention_weight'])} attentions, mlps"
    tokens = describe("tokens", inputs["tokens"], "b n")
    return f"LanguageModel({vocab_size}, {hidden}, {max_len}, {blocks}) with given weights on {tokens}"


def _of_block(inputs: Inputs, layer: str, block: int) -> Inputs:
    """Return weight and bias of a layer in one of the blocks."""
    return {part: inputs[f"{layer}_{part}"][block] for part in ("weight", "bias")}


def _given_parts(inputs: Inputs, hidden: int, tried: str) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return for each block what stands for attention, and what stands for the MLP: one layer and a tanh."""
    attentions, mlps = [], []
    for block in range(len(inputs["attention_weight"])):
        attention, mlp = RunningMean(hidden), nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh())
        load_parameters(attention.attention, _of_block(inputs, "attention", block), tried)
        load_parameters(mlp[0], _of_block(inputs, "mlp", block), tried)
        attentions.append(attention)
        mlps.append(mlp)
    return attentions, mlps


def _build_model(answer: Callable, inputs: Inputs) -> nn.Module:
    """Return the student's model with given weights, around parts that stand for attention and MLP."""
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
    """Raise CheckFailed unless the model holds the parts that it was given."""
    for name, parts in expected.items():
        theirs = getattr(model, name, None)
        if not isinstance(theirs, nn.ModuleList) or list(theirs) != parts:
            yours = f"self.{name} is {kind(theirs)}" if hasattr(model, name) else f"there is no self.{name}"
            raise CheckFailed(tried, yours, f"self.{name} is nn.ModuleList({name})", KEEP_INIT)


def _check_layers(tried: str, model: nn.Module, expected: dict[str, nn.Module]) -> None:
    """Raise CheckFailed unless the model has these layers, by names such as `mlp_norms.0`."""
    found = dict(model.named_modules(remove_duplicate=False))
    for name, layer in expected.items():
        theirs = found.get(name)
        if repr(theirs) != repr(layer):
            yours = f"self.{name} is {theirs if type(theirs) is type(layer) else kind(theirs)}"
            yours = yours if theirs else f"there is no self.{name}"
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

# --- last-position-bits -------------------------------------------------------------------------

GRAPH = "Gradients are switched on while the model computes: nothing learns here, and a graph costs memory."
MODE = "The model comes back in another mode: remember the one that it was in, and set that again."
FROZEN = "The model's parameters no longer learn after the call: to do without gradients, leave the model as it is."
SWITCHED_OFF = "Gradients stay switched off after the call, for all that comes later: switch them off inside it only."
NOT_A_NUMBER = "Return one number: a Python float, or a tensor without any axes."


def returned_by(answer: Callable, tried: str, model: nn.Module, *arguments: object) -> object:
    """Return what an answer makes of a model, after checking that everything can learn as before."""
    with torch.enable_grad():  # at its end, gradients are as they were, whatever the answer leaves behind
        returned = answer(model, *arguments)
        switched_off = not torch.is_grad_enabled()
    if switched_off:
        raise CheckFailed(tried, "gradients are switched off afterwards", "gradients as they were", SWITCHED_OFF)
    if not all(parameter.requires_grad for parameter in model.parameters()):
        raise CheckFailed(tried, "parameters that get no gradient any more", "the model as it was", FROZEN)
    return returned


class InTraining(nn.Module):
    """Stands for dropout: adds something in train mode, and nothing in eval mode."""

    def __init__(self, added: Tensor) -> None:
        super().__init__()
        self.register_buffer("added", added)

    def forward(self, x: Tensor) -> Tensor:
        """Return x, with something added in train mode."""
        return x + self.added if self.training else x


class MeanOfRows(nn.Module):
    """Stands for a language model: the logits are the mean of the rows of a table that the tokens so far stand for.

    `has_built_graph` tells whether it was ever called with gradients switched on.
    """

    def __init__(self, table: Tensor, added: Tensor, max_len: int) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(table.detach(), freeze=False)
        self.in_training = InTraining(added.detach())
        self.max_len = max_len
        self.has_built_graph = False

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token, (b, n, v).

        Raises ValueError if there are more than max_len tokens.
        """
        n = tokens.shape[1]
        if n > self.max_len:
            raise ValueError(f"tokens must have at most max_len={self.max_len} positions, got {n}.")
        counts = torch.arange(1, n + 1, device=tokens.device)
        logits = self.in_training(self.table(tokens).cumsum(dim=1) / counts[:, None])
        self.has_built_graph |= logits.requires_grad
        return logits


def _measured(inputs: Inputs, output: str) -> tuple[MeanOfRows, list[Tensor]]:
    """Return a model in train mode and three batches, the last of one sequence; or one in eval mode and one batch."""
    tokens = inputs["tokens"]
    model = MeanOfRows(inputs["table"], inputs["added"], max_len=tokens.shape[1] - 1)
    batches = list(tokens.split(len(tokens) // 2))
    return (model, batches) if output == "bits" else (model.eval(), batches[:1])


def _tried_bits(inputs: Inputs, output: str) -> str:
    model, batches = _measured(inputs, output)
    sizes = ", ".join(str(len(batch)) for batch in batches)
    given = f"with batches of {sizes} sequences of {model.max_len + 1} tokens"
    return f"last_position_bits(model, batches), the model in {_mode(model)} mode, {given}"


def _mode(model: nn.Module) -> str:
    return "train" if model.training else "eval"


def _call_bits(answer: Callable, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the bits, after checking that no graph was built and that the model is in its mode again."""
    for output in LAST_POSITION_BITS.axes:
        model, batches = _measured(inputs, output)
        mode, tried = _mode(model), _tried_bits(inputs, output)
        bits = returned_by(answer, tried, model, iter(batches))
        if model.has_built_graph:
            raise CheckFailed(tried, "a graph is built", "no graph", GRAPH)
        if any(_mode(module) != mode for module in model.modules()):
            raise CheckFailed(tried, f"the model is not in {mode} mode afterwards", f"a model in {mode} mode", MODE)
        if isinstance(bits, float | int | np.floating):
            bits = torch.tensor(float(bits))
        if not isinstance(bits, Tensor):
            raise CheckFailed(tried, f"{output} is {kind(bits)}", f"{output}, one number", NOT_A_NUMBER)
        yield bits.reshape(1) if bits.dim() == 0 else bits


LAST_POSITION_BITS = PublicExercise(
    id="last-position-bits",
    axes={"bits": "number", "bits_of_one_batch": "number"},
    trains=(),
    reads=("tokens",),
    build=lambda answer, inputs: answer,
    call=_call_bits,
    tried=_tried_bits,
    batched=False,
    keeps_device=False,
)

# --- the checks ---------------------------------------------------------------------------------


def language_model(answer: Callable) -> None:
    """Check the student's `LanguageModel`, with simple parts in place of attentions and MLPs."""
    require_own(answer)
    LANGUAGE_MODEL.check(answer)


def last_position_bits(answer: Callable) -> None:
    """Check the student's `last_position_bits`, with a simple model, in train mode and in eval mode."""
    require_own(answer)
    LAST_POSITION_BITS.check(answer)
