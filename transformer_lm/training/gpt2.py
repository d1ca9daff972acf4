"""Load weights of GPT-2 into our model: the same numbers under other names."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.training.checkpoints import load_weights

WHOLE = {"wte": "embed.tokens", "wpe": "embed.positions", "ln_f": "final_norm"}
NAMES = {
    "ln_1": "attention_norm",
    "ln_2": "mlp_norm",
    "attn.c_proj": "attention.mix",
    "mlp.c_fc": "mlp.up",
    "mlp.c_proj": "mlp.down",
}
IN_BLOCK = re.compile(r"h\.(\d+)\.(.+)\.(weight|bias)")


def from_gpt2(state: Mapping[str, Tensor], num_heads: int) -> TransformerLM:
    """Return our model with the weights of a `GPT2LMHeadModel` of the library transformers, given its state dict.

    Radford et al., Language Models are Unsupervised Multitask Learners, 2019. Sizes follow from the weights, except for
    the number of heads. GPT-2 stores its linear layers transposed, and queries, keys and values in one layer.

    Raises ValueError if something is missing or left over, or the output is not tied to the embedding.
    """
    state = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    # Old files also contain the mask.
    state = {name: tensor for name, tensor in state.items() if not name.endswith((".attn.bias", ".attn.masked_bias"))}
    if "wte.weight" not in state or "wpe.weight" not in state:
        raise ValueError(f"state must be that of a GPT-2, with wte.weight and wpe.weight, got {sorted(state)[:4]}.")
    if not torch.equal(state.pop("lm_head.weight", state["wte.weight"]), state["wte.weight"]):
        raise ValueError("state must have one table for tokens and output, got a separate lm_head.weight.")
    layers = 1 + max((int(found[1]) for found in map(IN_BLOCK.fullmatch, state) if found), default=-1)
    (vocab_size, hidden), max_len = state["wte.weight"].shape, len(state["wpe.weight"])
    config = LMConfig(vocab_size, max_len, hidden, layers, num_heads)
    model = TransformerLM(config).to(state["wte.weight"].dtype)
    weights: dict[str, Tensor] = {}
    for name, tensor in state.items():
        weights |= _renamed(name, tensor)
    load_weights(model, weights, Path("state"))
    return model.eval()


def _renamed(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return a tensor of GPT-2 under our name, transposed if necessary, or split into three if it holds three."""
    layer, _, kind = name.rpartition(".")
    if layer in WHOLE:
        return {f"{WHOLE[layer]}.{kind}": tensor}
    found = IN_BLOCK.fullmatch(name)
    if found is None or found[2] not in (*NAMES, "attn.c_attn"):
        return {name: tensor}  # left over
    number, part, _ = found.groups()
    block = f"blocks.{number}"
    if tensor.dim() == 2:
        tensor = tensor.T
    if part == "attn.c_attn":
        each = zip("qkv", torch.chunk(tensor, 3), strict=True)
        return {f"{block}.attention.{letter}.{kind}": third for letter, third in each}
    return {f"{block}.{NAMES[part]}.{kind}": tensor}
