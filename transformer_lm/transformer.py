"""The transformer decoder, under the name of the file that a well-known homework keeps it in.

The classes are in modeling_lm.py and modeling_transformer.py.
"""

from transformer_lm.modeling_lm import Embed, TransformerLM
from transformer_lm.modeling_transformer import TransformerDecoderBlock

__all__ = ["Embed", "TransformerDecoderBlock", "TransformerLM"]
