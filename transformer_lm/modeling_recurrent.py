"""Translation before transformers: one recurrent network reads the source word by word, another writes the target.

Axes: b batch, m positions of the source, n positions of the target, v vocabulary of the target.

Gated recurrent units: Cho et al., 2014, arXiv:1406.1078. Long short-term memory: Hochreiter and Schmidhuber, 1997; both
in the form that torch uses. Encoder and decoder: Sutskever et al., 2014, arXiv:1409.3215. Additive attention: Bahdanau
et al., 2014, arXiv:1409.0473.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transformer_lm.answers import sealed_while_open
from transformer_lm.attention import attention_weights
from transformer_lm.settings import require_bool, require_one_vocabulary, require_whole
from transformer_lm.shapes import match_axes
from transformer_lm.texts.word_tokenizers import PAD

CELLS = ("gru", "lstm")


@dataclass(frozen=True)
class RecurrentConfig:
    """The sizes of a recurrent encoder-decoder.

    `cell` is `gru` or `lstm`. The encoder reads the source in both directions, with `hidden` numbers for each. With
    `attention`, the decoder attends to all encoder states at each step; otherwise it gets only the last states. With
    `shared`, both languages and the output share one embedding table, which requires one vocabulary for both.
    """

    source_vocab_size: int
    target_vocab_size: int
    hidden: int = 64
    cell: str = "gru"
    attention: bool = True
    dropout: float = 0.0
    shared: bool = False

    def __post_init__(self) -> None:
        for name in ("source_vocab_size", "target_vocab_size", "hidden"):
            require_whole(name, getattr(self, name))
        for name in ("attention", "shared"):
            require_bool(name, getattr(self, name))
        if self.cell not in CELLS:
            raise ValueError(f"cell must be one of {', '.join(CELLS)}, got {self.cell!r}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout!r}.")
        require_one_vocabulary(self)


class GRUCell(nn.Module):
    """A gated recurrent unit: one gate sets how much of the old state stays, another how much of it enters the new.

    The weights are laid out as in `torch.nn.GRU`: reset gate, update gate, new state.
    """

    gates = 3

    def __init__(self, input_size: int, hidden: int) -> None:
        super().__init__()
        self.given = nn.Linear(input_size, self.gates * hidden)
        self.kept = nn.Linear(hidden, self.gates * hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))

    def start(self, b: int) -> tuple[Tensor, ...]:
        """Return the state of b sequences before their first token: zeros."""
        return (self.kept.weight.new_zeros(b, self.kept.in_features),)

    def forward(self, given: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the next state, given the output of `self.given` for a token, (b, 3 * hidden), and the last state."""
        (old,) = state
        reset, update, new = given.chunk(3, dim=-1)
        kept_reset, kept_update, kept_new = self.kept(old).chunk(3, dim=-1)
        reset, update = (reset + kept_reset).sigmoid(), (update + kept_update).sigmoid()
        new = (new + reset * kept_new).tanh()
        return (new + update * (old - new),)


class LSTMCell(GRUCell):
    """Long short-term memory: one state that is output, and one that is kept behind gates.

    The weights are laid out as in `torch.nn.LSTM`: input gate, forget gate, new content, output gate.
    """

    gates = 4

    def start(self, b: int) -> tuple[Tensor, ...]:
        """Return both states of b sequences before their first token: zeros."""
        return super().start(b) * 2

    def forward(self, given: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the next states, given the output of `self.given` for a token, (b, 4 * hidden), and the last."""
        shown, memory = state
        write, forget, content, show = (given + self.kept(shown)).chunk(4, dim=-1)
        memory = forget.sigmoid() * memory + write.sigmoid() * content.tanh()
        return show.sigmoid() * memory.tanh(), memory


def make_cell(kind: str, input_size: int, hidden: int) -> GRUCell:
    """Return a cell of a kind, `gru` or `lstm`."""
    return {"gru": GRUCell, "lstm": LSTMCell}[kind](input_size, hidden)


def read_sequence(cell: GRUCell, x: Tensor, visible: Tensor, backwards: bool = False) -> tuple[Tensor, tuple]:
    """Run a cell over a sequence, position by position; padding leaves its state unchanged.

    Shapes:
        x        (b, m, d)
        visible  (b, m)  False at padding
        returns  (b, m, hidden) the state after each position, and the state after the last

    Raises ShapeError if an axis has two sizes.
    """
    match_axes(x=(x, "b m d"), visible=(visible, "b m"))
    given = cell.given(x)  # (b, m, gates * hidden), for all positions at once
    state, states = cell.start(len(x)), dict[int, Tensor]()
    places = range(x.shape[1])
    for place in reversed(places) if backwards else places:
        real = visible[:, place, None]
        state = tuple(torch.where(real, *both) for both in zip(cell(given[:, place], state), state, strict=True))
        states[place] = state[0]
    return torch.stack([states[place] for place in places], dim=1), state


@sealed_while_open("cross-attention")
class AdditiveAttention(nn.Module):
    """Attention of one query to a memory, in which a small network scores each query and key."""

    def __init__(self, query_size: int, memory_size: int, hidden: int) -> None:
        super().__init__()
        self.q = nn.Linear(query_size, hidden)
        self.k = nn.Linear(memory_size, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, query: Tensor, memory: Tensor, keys: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention output of each query and its weights.

        Shapes:
            query    (b, d)
            memory   (b, m, dm)
            keys     (b, m, hidden)  `self.k(memory)`: the same for all queries
            visible  (b, m)          False at padding
            returns  (b, dm), and the weights (b, m)

        Raises ShapeError if an axis has two sizes, ValueError if a memory is all padding.
        """
        match_axes(
            query=(query, "b d"),
            memory=(memory, "b m dm"),
            keys=(keys, "b m hidden"),
            visible=(visible, "b m"),
        )
        scores = self.score((self.q(query)[:, None] + keys).tanh()).transpose(1, 2)  # (b, 1, m)
        weights = attention_weights(scores, visible[:, None])
        return (weights @ memory)[:, 0], weights[:, 0]


@dataclass
class RecurrentState:
    """The state of the recurrent decoder during decoding, with a row for each target."""

    cell: tuple[Tensor, ...]  # (b, hidden) each
    memory: Tensor  # (b, m, 2 * hidden)
    keys: Tensor | None  # (b, m, hidden)
    visible: Tensor  # (b, m)
    weights: Tensor | None = None  # (b, m), the attention of the last step

    def selected(self, rows: Tensor) -> "RecurrentState":
        """Return the state with these rows, which may be repeated: the rows with which a beam search continues."""
        keys = None if self.keys is None else self.keys[rows]
        return RecurrentState(tuple(part[rows] for part in self.cell), self.memory[rows], keys, self.visible[rows])


class RecurrentEncoderDecoder(nn.Module):
    """A recurrent encoder, a recurrent decoder, and between them one vector, or additive attention."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden
        self.source_embed = nn.Embedding(config.source_vocab_size, hidden)
        self.target_embed = self.source_embed if config.shared else nn.Embedding(config.target_vocab_size, hidden)
        self.forwards = make_cell(config.cell, hidden, hidden)
        self.backwards = make_cell(config.cell, hidden, hidden)
        self.bridge = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in self.forwards.start(1))
        self.attention = AdditiveAttention(hidden, 2 * hidden, hidden) if config.attention else None
        self.decoder = make_cell(config.cell, hidden + 2 * hidden * config.attention, hidden)
        self.join = nn.Linear(hidden + 2 * hidden, hidden) if config.attention else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.unembed = nn.Linear(hidden, config.target_vocab_size, bias=False)
        self.scale = 1.0
        if config.shared:  # small, as the output needs it, and scaled to size 1 as an embedding
            self.unembed.weight, self.scale = self.source_embed.weight, math.sqrt(hidden)
            nn.init.normal_(self.unembed.weight, std=1 / self.scale)

    @property
    def num_parameters(self) -> int:
        """The number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return at each position of the target the logits of the next token.

        Shapes:
            source   (b, m)  padded with PAD
            target   (b, n)  begins with START, padded with PAD
            returns  (b, n, v)
        """
        match_axes(source=(source, "b m"), target=(target, "b n"))
        state = self.begin(source)
        outputs = [self._output(x, state) for x in self._embedded(target, self.target_embed).unbind(dim=1)]
        return self.unembed(torch.stack(outputs, dim=1))

    def begin(self, source: Tensor) -> RecurrentState:
        """Return the state of a decoder that has read the source, (b, m), and written nothing yet."""
        visible, x = source != PAD, self._embedded(source, self.source_embed)
        onward, last = read_sequence(self.forwards, x, visible)
        back, first = read_sequence(self.backwards, x, visible, backwards=True)
        memory = torch.cat((onward, back), dim=-1)  # (b, m, 2 * hidden)
        ends = zip(self.bridge, last, first, strict=True)
        cell = tuple(bridge(torch.cat(both, dim=-1)).tanh() for bridge, *both in ends)
        return RecurrentState(cell, memory, None if self.attention is None else self.attention.k(memory), visible)

    def next_scores(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        """Return the logits after one more token of each target; the token is added to the state.

        Shapes:
            tokens   (b,)
            returns  (b, v)
        """
        return self.unembed(self._output(self._embedded(tokens, self.target_embed), state))

    def attention_map(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the decoder's attention to the source at each token of the target.

        Shapes:
            source   (b, m)
            target   (b, n)
            returns  (b, n, m)

        Raises ValueError for a model without attention.
        """
        if self.attention is None:
            raise ValueError("model must have attention, got attention=False.")
        state, looked = self.begin(source), []
        for tokens in target.unbind(dim=1):
            self.next_scores(tokens, state)
            assert state.weights is not None
            looked.append(state.weights)
        return torch.stack(looked, dim=1)

    def _embedded(self, tokens: Tensor, table: nn.Embedding) -> Tensor:
        return self.dropout(table(tokens) * self.scale)

    def _output(self, x: Tensor, state: RecurrentState) -> Tensor:
        """Take one step with token vectors, (b, hidden), and return the input of the output layer, (b, hidden)."""
        if self.attention is None:
            state.cell = self.decoder(self.decoder.given(x), state.cell)
            return self.dropout(state.cell[0])
        read, state.weights = self.attention(state.cell[0], state.memory, state.keys, state.visible)
        state.cell = self.decoder(self.decoder.given(torch.cat((x, read), dim=-1)), state.cell)
        return self.dropout(self.join(torch.cat((state.cell[0], read), dim=-1)).tanh())
