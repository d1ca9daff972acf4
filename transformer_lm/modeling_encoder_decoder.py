"""The original transformer: an encoder reads a sentence, and a decoder writes its translation token by token.

Axes: b batch, h heads, m positions of the source, n positions of the target, v vocabulary of the target.

An encoder-decoder has three methods: `forward(source, target)` for all positions in one pass, as in training;
`begin(source)` and `next_scores(tokens, state)` for one position at a time, as in decoding. `RecurrentEncoderDecoder`
of modeling_recurrent.py has the same methods.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_lm.answers import sealed_while_open
from transformer_lm.attention import create_causal_mask
from transformer_lm.modeling_attention import (
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    merge_heads,
    split_heads,
)
from transformer_lm.modeling_transformer import TransformerEncoderBlock
from transformer_lm.positions import sinusoids
from transformer_lm.settings import require_bool, require_one_vocabulary, require_whole
from transformer_lm.shapes import ShapeError, match_axes
from transformer_lm.texts.word_tokenizers import PAD


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """The sizes of an encoder-decoder.

    `num_layers` is the number of blocks in the encoder, and again in the decoder. With `shared`, both languages and the
    output share one embedding table, which requires one vocabulary for both. In training, the positions of a pair are
    counted from a random number up to `shift`, so that the model also learns positions that only long sentences reach
    (Kiyono et al., SHAPE, 2021, arXiv:2109.05644).
    """

    source_vocab_size: int
    target_vocab_size: int
    max_len: int = 128
    hidden: int = 64
    num_layers: int = 2
    num_heads: int = 4
    dropout: float = 0.0
    shared: bool = False
    shift: int = 0

    def __post_init__(self) -> None:
        for name in ("source_vocab_size", "target_vocab_size", "max_len", "hidden", "num_layers", "num_heads"):
            require_whole(name, getattr(self, name))
        require_whole("shift", self.shift, lowest=0)
        require_bool("shared", self.shared)
        if self.hidden % self.num_heads or self.hidden % 2:
            raise ValueError(
                f"hidden must be even and num_heads divide it, got num_heads={self.num_heads} and hidden={self.hidden}."
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout!r}.")
        require_one_vocabulary(self)


@sealed_while_open("cross-block")
class CrossDecoderBlock(nn.Module):
    """A decoder block with cross-attention: attend to the target so far, attend to the source, apply the MLP.

    `attention` is called as `attention(x, visible=target_visible)`, `cross_attention` as
    `cross_attention(x, memory, source_visible)`, `mlp` as `mlp(x)`; each returns (b, n, hidden). It is a pre-norm
    block.
    """

    def __init__(
        self, hidden: int, attention: nn.Module, cross_attention: nn.Module, mlp: nn.Module, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = attention
        self.cross_norm = nn.LayerNorm(hidden)
        self.cross_attention = cross_attention
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp = mlp
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, target_visible: Tensor, source_visible: Tensor) -> Tensor:
        """Return the new vector of every target position.

        Shapes:
            x               (b, n, hidden)
            memory          (b, m, hidden)  the encoder's output
            target_visible  (b, n, n)       True where a target position may attend to another
            source_visible  (b, m)          False at padding of the source
            returns         (b, n, hidden)
        """
        x = x + self.dropout(self.attention(self.attention_norm(x), visible=target_visible))
        x = x + self.dropout(self.cross_attention(self.cross_norm(x), memory, source_visible))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))

    def read_one(self, x: Tensor, layer: "LayerMemory", source_mask: Tensor) -> Tensor:
        """Return the new vector of the next position of each target, (b, 1, hidden) like x.

        It works for the attention of this package, in eval mode.
        """
        attention, normed = self.attention, self.attention_norm(x)
        assert isinstance(attention, MultiHeadSelfAttention)
        assert isinstance(self.cross_attention, MultiHeadCrossAttention)
        layer.extend(*(split_heads(linear(normed), attention.num_heads) for linear in (attention.k, attention.v)))
        queries = split_heads(attention.q(normed), attention.num_heads)  # (b, h, 1, dh)
        heads = F.scaled_dot_product_attention(queries, layer.keys, layer.values)
        x = x + attention.mix(merge_heads(heads))
        x = x + self.cross_attention.read(self.cross_norm(x), layer.source_keys, layer.source_values, source_mask)
        return x + self.mlp(self.mlp_norm(x))


@dataclass
class LayerMemory:
    """The KV cache of one decoder block: keys and values of the source, and of the target so far."""

    source_keys: Tensor  # (b, h, m, dh)
    source_values: Tensor
    keys: Tensor  # (b, h, n, dh)
    values: Tensor

    def extend(self, keys: Tensor, values: Tensor) -> None:
        """Append one more position of the target."""
        self.keys, self.values = torch.cat((self.keys, keys), dim=2), torch.cat((self.values, values), dim=2)


@dataclass
class DecoderState:
    """The state of the decoder during decoding, with a row for each target."""

    source_mask: Tensor  # (b, 1, 1, m), False at padding
    layers: list[LayerMemory]
    length: int = 0

    def selected(self, rows: Tensor) -> "DecoderState":
        """Return the state with these rows, which may be repeated: the rows with which a beam search continues."""
        layers = [LayerMemory(*(tensor[rows] for tensor in vars(layer).values())) for layer in self.layers]
        return DecoderState(self.source_mask[rows], layers, self.length)


class TransformerEncoderDecoder(nn.Module):
    """A transformer that reads a source and returns, at each position of a target, logits of the next token.

    Vaswani et al., Attention Is All You Need, 2017, arXiv:1706.03762; the norms come before the sublayers here. It
    computes the same as `torch.nn.Transformer` with `norm_first=True` and the same weights.
    """

    positions: Tensor

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads, dropout = config.hidden, config.num_heads, config.dropout
        self.source_embed = nn.Embedding(config.source_vocab_size, hidden)
        self.target_embed = self.source_embed if config.shared else nn.Embedding(config.target_vocab_size, hidden)
        self.register_buffer("positions", sinusoids(config.max_len + config.shift, hidden), persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.encoder_blocks = nn.ModuleList(
            TransformerEncoderBlock(hidden, MultiHeadSelfAttention(hidden, hidden, heads, dropout=dropout), dropout)
            for _ in range(config.num_layers)
        )
        self.encoder_norm = nn.LayerNorm(hidden)
        self.decoder_blocks = nn.ModuleList(
            CrossDecoderBlock(
                hidden,
                MultiHeadSelfAttention(hidden, hidden, heads, dropout=dropout),
                MultiHeadCrossAttention(hidden, heads, dropout),
                nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.ReLU(), nn.Linear(4 * hidden, hidden)),
                dropout,
            )
            for _ in range(config.num_layers)
        )
        self.decoder_norm = nn.LayerNorm(hidden)
        self.unembed = nn.Linear(hidden, config.target_vocab_size, bias=False)
        if config.shared:
            self.unembed.weight = self.target_embed.weight
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Scale embeddings like the sinusoidal encodings, and let keys start equal to queries, at twice their size.

        So attention to the source begins by looking for the same word, in both languages if `shared`, and names, whose
        meaning is given elsewhere in the sentence, are learned sooner. The rest is as in PyTorch.
        """
        for table in (self.source_embed, self.target_embed):
            nn.init.normal_(table.weight, std=self.config.hidden**-0.5)  # multiplied by sqrt(hidden) when it is used
        readers = [block.attention for block in self.encoder_blocks]
        for attention in (*readers, *(block.cross_attention for block in self.decoder_blocks)):
            assert isinstance(attention, MultiHeadSelfAttention | MultiHeadCrossAttention)
            attention.q.weight.mul_(2)
            attention.k.weight.copy_(attention.q.weight)

    @property
    def num_parameters(self) -> int:
        """The number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return at each position of the target the logits of the next token, in one pass.

        Shapes:
            source   (b, m)  padded with PAD
            target   (b, n)  begins with START, padded with PAD
            returns  (b, n, v)

        Raises ShapeError for a source or target of more than max_len tokens, ValueError for one that is all padding.
        """
        b = match_axes(source=(source, "b m"), target=(target, "b n"))["b"]
        start: int | Tensor = 0
        if self.training and self.config.shift:
            start = torch.randint(self.config.shift + 1, (b, 1), device=source.device)
        return self.decode(target, self.encode(source, start), source != PAD, start)

    def encode(self, source: Tensor, start: int | Tensor = 0) -> Tensor:
        """Return the encoder's output for each token of the source; its positions are counted from `start`.

        Shapes:
            source   (b, m)
            start    (b, 1), if it is not the same for all
            returns  (b, m, hidden)
        """
        visible = source != PAD
        x = self._embedded(source, self.source_embed, "source", start)
        for block in self.encoder_blocks:
            x = block(x, visible=visible)
        return self.encoder_norm(x)

    def decode(self, target: Tensor, memory: Tensor, source_visible: Tensor, start: int | Tensor = 0) -> Tensor:
        """Return the logits of `forward` for an encoded source, with positions counted from `start`.

        Shapes:
            target          (b, n)
            memory          (b, m, hidden)
            source_visible  (b, m)
            start           (b, 1), if it is not the same for all
            returns         (b, n, v)
        """
        x = self._embedded(target, self.target_embed, "target", start)
        target_visible = target_mask(target, PAD)
        for block in self.decoder_blocks:
            x = block(x, memory, target_visible, source_visible)
        return self.unembed(self.decoder_norm(x))

    def begin(self, source: Tensor) -> DecoderState:
        """Return the state of a decoder that has read the source, (b, m), and written nothing yet."""
        memory, heads = self.encode(source), self.config.num_heads
        nothing = memory.new_empty(len(source), heads, 0, self.config.hidden // heads)
        layers = []
        for block in self.decoder_blocks:
            assert isinstance(block.cross_attention, MultiHeadCrossAttention)
            layers.append(LayerMemory(*block.cross_attention.keys_and_values(memory), nothing, nothing))
        return DecoderState((source != PAD)[:, None, None], layers)

    def next_scores(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Return the logits after one more token of each target; the token is added to the state.

        Shapes:
            tokens   (b,)
            returns  (b, v)
        """
        if state.length == self.config.max_len:
            raise ShapeError(f"target must have at most max_len={state.length} tokens, got {state.length + 1}.")
        x = self._embedded(tokens[:, None], self.target_embed, "target", state.length)
        for block, layer in zip(self.decoder_blocks, state.layers, strict=True):
            assert isinstance(block, CrossDecoderBlock)
            x = block.read_one(x, layer, state.source_mask)
        state.length += 1
        return self.unembed(self.decoder_norm(x[:, 0]))

    def _embedded(self, tokens: Tensor, table: nn.Embedding, name: str, start: int | Tensor) -> Tensor:
        n = match_axes(**{name: (tokens, "b n")})["n"]
        if n > self.config.max_len:
            raise ShapeError(f"{name} must have at most max_len={self.config.max_len} tokens, got {n}.")
        places = start + torch.arange(n, device=tokens.device)  # (n,) or (b, n)
        return self.dropout(table(tokens) * self.config.hidden**0.5 + self.positions[places])


@sealed_while_open("target-mask")
def target_mask(tokens: Tensor, pad: int) -> Tensor:
    """Return which positions of a target may attend to which: neither to the future nor to padding.

    Shapes:
        tokens   (b, n)  padded on the right
        returns  (b, n, n)  True where position i may attend to position j
    """
    n = match_axes(tokens=(tokens, "b n"))["n"]
    return create_causal_mask(n, tokens.device) & (tokens != pad)[:, None, :]
