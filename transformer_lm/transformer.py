"""The transformer decoder, under the file name of a well-known homework.

The classes are in modeling_lm.py and modeling_transformer.py.
"""

from transformer_lm.modeling_lm import Embed, TransformerLM
from transformer_lm.modeling_transformer import TransformerDecoderBlock

__all__ = ["Embed", "TransformerDecoderBlock", "TransformerLM"]
