"""A transformer language model: from tokens to logits of the next one, with the options of old and modern models.

Axes: b batch, h heads, n positions, i of the query, j of the key, v vocabulary, dh width of one head; hidden = h * dh.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_lm.answers import sealed_while_open
from transformer_lm.attention import attention_scores, attention_weights
from transformer_lm.modeling_attention import CausalSelfAttention
from transformer_lm.modeling_transformer import TransformerDecoderBlock
from transformer_lm.positions import sinusoids, turned, turns
from transformer_lm.sampling import continuation
from transformer_lm.settings import require_bool, require_whole
from transformer_lm.shapes import ShapeError, match_axes

POSITIONS = ("learned", "sinusoidal", "rotary", "relative", "none")
NORMS = ("layer", "rms", "plain")
MLPS = ("relu", "gelu", "relu_squared", "swiglu")
INITS = ("torch", "gpt2", "zero_output")


@dataclass(frozen=True)
class LMConfig:
    """The sizes and options of a language model; the defaults are those of a small GPT-2.

    `positions` and `mlp` name the method that is used; the `norm` called `plain` is a layer norm without parameters.
    `mlp_hidden` defaults to 4 * hidden. With `norm_first` (pre-norm), norms come before attention and MLP, and one more
    before the output; otherwise (post-norm) they come after each residual connection, as in the original transformer.
    `tied` shares one matrix between the embedding and the output. With `smear`, a learned fraction of each token's
    vector is added to the next. Without `residual`, the outputs of attention and MLP replace their inputs and are not
    added.
    """

    vocab_size: int
    max_len: int = 64
    hidden: int = 128
    num_layers: int = 4
    num_heads: int = 4
    mlp_hidden: int | None = None
    dropout: float = 0.0
    positions: str = "learned"
    norm: str = "layer"
    norm_first: bool = True
    query_key_norm: bool = False
    mlp: str = "gelu"
    bias: bool = True
    tied: bool = True
    output_bias: bool = False
    smear: bool = False
    init: str = "gpt2"
    residual: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "max_len", "hidden", "num_layers", "num_heads"):
            require_whole(name, getattr(self, name))
        if self.mlp_hidden is not None:
            require_whole("mlp_hidden", self.mlp_hidden)
        for name in ("norm_first", "query_key_norm", "bias", "tied", "output_bias", "smear", "residual"):
            require_bool(name, getattr(self, name))
        for name, known in (("positions", POSITIONS), ("norm", NORMS), ("mlp", MLPS), ("init", INITS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}.")
        if self.hidden % self.num_heads:
            raise ValueError(f"num_heads must divide hidden, got num_heads={self.num_heads} and hidden={self.hidden}.")
        is_number = isinstance(self.dropout, int | float) and not isinstance(self.dropout, bool)
        if not is_number or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout!r}.")
        if self.positions == "rotary" and self.hidden // self.num_heads % 2:
            raise ValueError(f"rotary positions must have heads of even width, got {self.hidden // self.num_heads}.")
        if self.positions == "sinusoidal" and self.hidden % 2:
            raise ValueError(f"sinusoidal positions must have an even hidden, got {self.hidden}.")
        if self.tied and self.init == "zero_output":
            raise ValueError("init must not be zero_output if tied, got both: all embeddings would be 0.")


@sealed_while_open("embed")
class Embed(nn.Module):
    """The vector of each token, plus a learned or sinusoidal vector of its position, or none."""

    waves: Tensor | None

    def __init__(self, vocab_size: int, hidden: int, max_len: int, positions: str = "learned") -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, hidden)
        self.positions = nn.Embedding(max_len, hidden) if positions == "learned" else None
        waves = sinusoids(max_len, hidden) if positions == "sinusoidal" else None
        self.register_buffer("waves", waves, persistent=False)

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Return the vectors of tokens at the positions from `start` on.

        Shapes:
            tokens   (b, n)
            returns  (b, n, hidden)
        """
        x = self.tokens(tokens)
        table = self.waves if self.positions is None else self.positions.weight  # (max_len, hidden)
        return x if table is None else x + table[start : start + tokens.shape[1]]


@sealed_while_open("language-model")
class MLP(nn.Module):
    """The feed-forward network of a block: a wider linear layer, a non-linearity, and a linear layer back."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        width = config.mlp_hidden or 4 * config.hidden
        self.kind = config.mlp
        self.up = nn.Linear(config.hidden, width, bias=config.bias)
        self.gate = nn.Linear(config.hidden, width, bias=config.bias) if config.mlp == "swiglu" else None
        self.down = nn.Linear(width, config.hidden, bias=config.bias)
        self.dropout = make_dropout(config)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for each position, computed from its own vector alone, (b, n, hidden) like x."""
        wide = self.up(x)  # (b, n, mlp_hidden)
        if self.kind == "gelu":
            bent = F.gelu(wide, approximate="tanh")
        elif self.gate is not None:  # Shazeer, GLU Variants Improve Transformer, 2020, arXiv:2002.05202
            bent = F.silu(self.gate(x)) * wide
        else:  # squared: So et al., Primer, 2021, arXiv:2109.08668
            bent = wide.relu() if self.kind == "relu" else wide.relu().square()
        return self.dropout(self.down(bent))


class Cache:
    """A KV cache: the keys and values of all tokens so far, in memory that is allocated once."""

    def __init__(self, config: LMConfig, b: int, like: Tensor) -> None:
        shape = (b, config.num_heads, config.max_len, config.hidden // config.num_heads)
        self.layers = [(like.new_empty(shape), like.new_empty(shape)) for _ in range(config.num_layers)]
        self.length = 0
        self._joined: dict[int, tuple[Tensor, Tensor | None]] = {}
        self.last: Tensor | None = None  # (b, 1, hidden), the embedding of the last token, for `smear`

    def joined(self, attention: "LMAttention") -> tuple[Tensor, Tensor | None]:
        """Return a layer's weights for queries, keys and values as one matrix, and their biases."""
        if attention.layer not in self._joined:
            three = (attention.q, attention.k, attention.v)
            bias = None if attention.q.bias is None else torch.cat([linear.bias for linear in three])
            self._joined[attention.layer] = torch.cat([linear.weight for linear in three]), bias
        return self._joined[attention.layer]

    def extended(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's keys and values of new positions, (b, h, n, dh); return those of all positions."""
        n, remembered = keys.shape[2], self.layers[layer]
        for memory, new in zip(remembered, (keys, values), strict=True):
            memory.narrow(2, self.length, n).copy_(new)
        return remembered[0].narrow(2, 0, self.length + n), remembered[1].narrow(2, 0, self.length + n)


@sealed_while_open("language-model")
class LMAttention(CausalSelfAttention):
    """Causal attention with optional rotary positions, normalised queries and keys, and a KV cache.

    Rotary position embedding: Su et al., RoFormer, 2021, arXiv:2104.09864. Relative positions, a learned bias for each
    head and distance that is added to the score: Raffel et al., T5, 2020, arXiv:1910.10683, here without buckets.
    """

    cos: Tensor | None
    sin: Tensor | None

    def __init__(self, config: LMConfig, layer: int) -> None:
        super().__init__(config.hidden, config.num_heads, config.max_len, config.dropout)
        self.layer = layer
        self.query_key_norm = config.query_key_norm
        if not config.bias:
            for linear in (self.k, self.q, self.v, self.mix):
                linear.register_parameter("bias", None)
        relative = config.positions == "relative"
        self.distances = nn.Parameter(torch.zeros(config.num_heads, config.max_len)) if relative else None
        cos, sin = (
            turns(config.max_len, config.hidden // config.num_heads) if config.positions == "rotary" else (None,) * 2
        )
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(
        self, x: Tensor, return_attention: bool = False, visible: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the same as CausalSelfAttention; with a cache, x holds the positions after the cached ones.

        Shapes:
            x        (b, n, hidden)
            returns  (b, n, hidden), and (b, h, i, j) the weights if return_attention
        """
        if visible is not None:
            raise ValueError("visible must be None: a language model reads texts without padding.")
        start = 0 if cache is None else cache.length
        queries, keys, values = (self._split(layer(x)) for layer in (self.q, self.k, self.v))  # (b, h, n, dh)
        if self.query_key_norm or self.cos is not None:
            queries, keys = self._placed(torch.stack((queries, keys)), start)
        if cache is not None:
            keys, values = cache.extended(self.layer, keys, values)  # (b, h, j, dh) from here on

        bias = None if self.distances is None else self._bias(start, keys.shape[2])  # (h, i, j)
        if return_attention:
            return self._formula(queries, keys, values, bias)
        several = queries.shape[2] > 1
        mask = None
        if bias is not None:
            mask = bias.masked_fill(~self._causal(start, keys.shape[2], x.device), -math.inf)
        elif several and start:
            mask = self._causal(start, keys.shape[2], x.device)
        heads = F.scaled_dot_product_attention(
            queries, keys, values, mask, self.dropout.p if self.training else 0.0, is_causal=several and mask is None
        )
        return self.mix(self._merge(heads))

    def _placed(self, both: Tensor, start: int) -> Tensor:
        """Return queries and keys, (2, b, h, n, dh), normalised and rotated by their positions from `start` on."""
        if self.query_key_norm:
            both = F.layer_norm(both, both.shape[-1:])
        if self.cos is None or self.sin is None:
            return both
        end = start + both.shape[-2]
        return turned(both, self.cos[start:end], self.sin[start:end])

    def read_one(self, x: Tensor, cache: Cache) -> Tensor:
        """Return the attention output of one new position of each sequence, (b, hidden) like x: a faster `forward`."""
        weight, bias = cache.joined(self)
        both, values = F.linear(x, weight, bias).view(len(x), 3, self.num_heads, -1).split((2, 1), dim=1)
        if self.query_key_norm or self.cos is not None:
            both = self._placed(both.unsqueeze(3), cache.length).squeeze(3)  # (b, 2, h, dh)
        keys, values = cache.extended(self.layer, both[:, 1].unsqueeze(2), values.transpose(1, 2))  # (b, h, j, dh)
        mask = None if self.distances is None else self._bias(cache.length, keys.shape[2])  # (h, 1, j)
        heads = F.scaled_dot_product_attention(both[:, 0].unsqueeze(2), keys, values, mask)  # (b, h, 1, dh)
        return F.linear(heads.flatten(1), self.mix.weight, self.mix.bias)

    def _formula(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the same as the fused kernel, and the weights (b, h, i, j) before dropout."""
        b, h, n, _ = queries.shape
        scores = attention_scores(queries.flatten(0, 1), keys.flatten(0, 1))  # (b * h, i, j)
        if bias is not None:
            scores = scores + bias.repeat(b, 1, 1)
        weights = attention_weights(scores, self._causal(keys.shape[2] - n, keys.shape[2], scores.device)[None])
        heads = self.dropout(weights) @ values.flatten(0, 1)  # (b * h, n, dh)
        return self.mix(self._merge(heads.unflatten(0, (b, h)))), weights.unflatten(0, (b, h))

    def _causal(self, start: int, end: int, device: torch.device) -> Tensor:
        """Return the causal mask for queries from `start` on and keys before `end`, (i, j)."""
        return self._causal_mask(self.max_len, device)[0, start:end, :end]

    def _bias(self, start: int, end: int) -> Tensor:
        """Return the bias that each head adds to the score of a key at each distance, (h, i, j)."""
        assert self.distances is not None
        places = torch.arange(end, device=self.distances.device)
        distance = (places[start:, None] - places).clamp(min=0)  # (i, j); the future is masked
        return self.distances[:, distance]


@sealed_while_open("language-model")
class LMBlock(TransformerDecoderBlock):
    """A decoder block with the norms of a config, before or after its sublayers, and with a cache."""

    attention: LMAttention

    def __init__(self, config: LMConfig, layer: int) -> None:
        super().__init__(config.hidden, LMAttention(config, layer), MLP(config))
        self.attention_norm, self.mlp_norm = make_norm(config), make_norm(config)
        self.norm_first, self.residual = config.norm_first, config.residual
        self.dropout = make_dropout(config)  # of the attention output; the MLP has its own dropout

    def forward(  # type: ignore[override]  # it also takes a cache, and may return its weights
        self, x: Tensor, cache: Cache | None = None, return_attention: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the new vector of every position, and the weights if return_attention.

        Shapes:
            x        (b, n, hidden)
            returns  (b, n, hidden), and (b, h, i, j) the weights
        """
        found = self.attention(self.attention_norm(x) if self.norm_first else x, return_attention, cache=cache)
        read, weights = found if return_attention else (found, None)
        x = self._thought(self._added(x, self.dropout(read)))
        return x if weights is None else (x, weights)

    def read_one(self, x: Tensor, cache: Cache) -> Tensor:
        """Return the new vector of one new position of each sequence, (b, hidden) like x."""
        read = self.attention.read_one(self.attention_norm(x) if self.norm_first else x, cache)
        return self._thought(self._added(x, read))

    def _thought(self, x: Tensor) -> Tensor:
        if self.norm_first:
            return self._added(x, self.mlp(self.mlp_norm(x)))
        x = self.attention_norm(x)
        return self.mlp_norm(self._added(x, self.mlp(x)))

    def _added(self, x: Tensor, found: Tensor) -> Tensor:
        """Return x plus the output of a sublayer (the residual connection), or only the output without `residual`."""
        return x + found if self.residual else found


def make_dropout(config: LMConfig) -> nn.Module:
    """Return a dropout layer, or a layer that does nothing if the rate is 0."""
    return nn.Dropout(config.dropout) if config.dropout else nn.Identity()


def make_norm(config: LMConfig) -> nn.LayerNorm | nn.RMSNorm:
    """Return a norm of the config's kind and width."""
    if config.norm == "rms":  # Zhang and Sennrich, 2019, arXiv:1910.07467
        return nn.RMSNorm(config.hidden, eps=1e-5)
    return nn.LayerNorm(config.hidden, elementwise_affine=config.norm == "layer")


@sealed_while_open("language-model")
class TransformerLM(nn.Module):
    """A decoder-only transformer, which returns logits of the next token at each position."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embed(config.vocab_size, config.hidden, config.max_len, config.positions)
        self.smear = nn.Parameter(torch.zeros(config.hidden)) if config.smear else None
        self.dropout = make_dropout(config)
        self.blocks = nn.ModuleList(LMBlock(config, layer) for layer in range(config.num_layers))
        self.final_norm = make_norm(config) if config.norm_first else nn.Identity()
        self.unembed = nn.Linear(config.hidden, config.vocab_size, bias=config.output_bias)
        if config.tied:
            self.unembed.weight = self.embed.tokens.weight
        self.init_weights()

    def init_weights(self, scheme: str | None = None) -> None:
        """Draw all weights again, by the config's scheme or another.

        `torch`: the defaults of PyTorch. `gpt2`: a normal distribution with standard deviation 0.02, smaller for the
        layers that write to the residual stream, and biases 0. `zero_output`: the defaults of PyTorch, but the output
        layer starts at 0, so that every token is equally likely, and the embeddings start at the scale of a normalised
        vector.
        """
        scheme = self.config.init if scheme is None else scheme
        if scheme not in INITS:
            raise ValueError(f"scheme must be one of {', '.join(INITS)}, got {scheme!r}.")
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding | nn.LayerNorm | nn.RMSNorm):
                module.reset_parameters()
        for name, parameter in self.named_parameters():
            if name.endswith(("smear", "distances")):
                nn.init.zeros_(parameter)
        if scheme == "gpt2":
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2 and not name.endswith("distances"):
                    added = name.endswith(("mix.weight", "down.weight"))
                    nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * len(self.blocks)) if added else 0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)
        elif scheme == "zero_output":
            nn.init.zeros_(self.unembed.weight)

    @property
    def num_parameters(self) -> int:
        """The number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Return at each position the logits of the next token.

        With a cache, the tokens follow the cached ones, and are added to the cache.

        Shapes:
            tokens   (b, n)
            returns  (b, n, v)

        Raises ShapeError if there are more than max_len tokens, including the cached ones, or if the cache is for
        another number of sequences.
        """
        x = self._embedded(tokens, cache)
        for block in self.blocks:
            x = block(x, cache)
        if cache is not None:
            cache.length += tokens.shape[1]
        return self.unembed(self.final_norm(x))

    def read_one(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Return the logits of `forward` for one more token of each sequence, but faster, in eval mode.

        Shapes:
            tokens   (b, 1)
            returns  (b, v)
        """
        x = self._embedded(tokens, cache)[:, 0]  # (b, hidden)
        for block in self.blocks:
            assert isinstance(block, LMBlock)
            x = block.read_one(x, cache)
        cache.length += 1
        return self.unembed(self.final_norm(x))

    def attention_maps(self, tokens: Tensor) -> list[Tensor]:
        """Return the attention weights of all heads in each layer, before dropout.

        Shapes:
            tokens   (b, n)
            returns  (b, h, i, j) each
        """
        x, maps = self._embedded(tokens), []
        for block in self.blocks:
            x, weights = block(x, return_attention=True)
            maps.append(weights)
        return maps

    def new_cache(self, b: int) -> Cache:
        """Return an empty cache for b sequences."""
        return Cache(self.config, b, self.embed.tokens.weight)

    def sample_continuation(self, tokens: list[int], num_tokens: int) -> list[int]:
        """Return num_tokens tokens that continue the given ones, each sampled from the model's predictions."""
        return self.better_sample_continuation(tokens, num_tokens)

    def better_sample_continuation(
        self, tokens: list[int], num_tokens: int, temperature: float = 1.0, top_k: int | None = None, **options: Any
    ) -> list[int]:
        """Sample with temperature and top-k; `transformer_lm.sampling.continuation` has more options."""
        if "topK" in options:
            raise TypeError(f"topK is called top_k here: pass top_k={options['topK']!r}.")
        prompt = torch.tensor([tokens], dtype=torch.long)
        return continuation(self, prompt, num_tokens, temperature=temperature, top_k=top_k, **options)[0].tolist()

    def _embedded(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        memory = {} if cache is None else {"cache": (cache.layers[0][0], "b h max_len dh")}
        n, start = match_axes(tokens=(tokens, "b n"), **memory)["n"], 0 if cache is None else cache.length
        if start + n > self.config.max_len:
            after = f" after {start} in the cache" if start else ""
            raise ShapeError(f"tokens must have at most max_len={self.config.max_len} positions, got n={n}{after}.")
        x = self.embed(tokens, start)  # (b, n, hidden)
        if self.smear is not None:
            first = torch.zeros_like(x[:, :1]) if cache is None or cache.last is None else cache.last
            before = torch.cat((first, x[:, :-1]), dim=1)
            if cache is not None:
                cache.last = x[:, -1:]
            x = x + self.smear * before
        return self.dropout(x)
