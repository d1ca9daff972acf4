"""The package behind the course: attention, built up from its formula, and checks that name your mistake.

Read the models in this order: `attention.py` (the functions), `modeling_attention.py` (the same as PyTorch modules),
`modeling_transformer.py` (the blocks built from them), `modeling_classifier.py`, `modeling_lm.py`,
`modeling_encoder_decoder.py`. Their data, their training and the analysis of their heads have separate folders;
docs/rooms.md describes each module in one line. Importing the package loads nothing but torch; figures and frozen
values are loaded on first use.
"""

from transformer_lm.device import best_device
from transformer_lm.modeling_attention import (
    CausalSelfAttention,
    CrossAttention,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    SelfAttention,
    SimpleSelfAttention,
)
from transformer_lm.modeling_classifier import SequenceClassifier, make_classifier
from transformer_lm.modeling_encoder_decoder import (
    CrossDecoderBlock,
    EncoderDecoderConfig,
    TransformerEncoderDecoder,
)
from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.modeling_recurrent import RecurrentConfig, RecurrentEncoderDecoder
from transformer_lm.modeling_transformer import PositionEmbedding, TransformerDecoderBlock, TransformerEncoderBlock

__version__ = "0.1.0"

__all__ = [
    "CausalSelfAttention",
    "CrossAttention",
    "CrossDecoderBlock",
    "EncoderDecoderConfig",
    "LMConfig",
    "MultiHeadCrossAttention",
    "MultiHeadSelfAttention",
    "PositionEmbedding",
    "RecurrentConfig",
    "RecurrentEncoderDecoder",
    "SelfAttention",
    "SequenceClassifier",
    "SimpleSelfAttention",
    "TransformerDecoderBlock",
    "TransformerEncoderBlock",
    "TransformerEncoderDecoder",
    "TransformerLM",
    "best_device",
    "make_classifier",
]
