"""The package behind the course: attention from its formula up, and checks that name your mistake.

Read in this order: `attention.py` (the functions), `modeling_attention.py` (the same as PyTorch modules),
`modeling_transformer.py` (what is built of them), `modeling_classifier.py` (classifiers of sequences), `datasets.py`,
`batching.py`, `classification.py` and `stacking.py` (what these are trained on, and how), `results.py` (tables and
curves), `modeling_lm.py` (language models), `corpora.py` and `tokenizers.py` (their texts), `lm.py` (labels, loss,
slices), `training.py` with `muon.py`, `presets.py`, `checkpoints.py` and `reports.py` (a training run), `sampling.py`
(what a model writes), `modeling_encoder_decoder.py` and `modeling_recurrent.py` (translation, with transformers and
before them), `pairs.py`, `toy_languages.py` and `pair_tokenizers.py` (its sentences), `translation.py`, `tasks.py`,
`decoding.py` and `translation_quality.py` (how it is learned, done and marked), `device.py` (where tensors live),
`checks/` (what tells you whether your answer is right), `mine.py` (what keeps your answers for later notebooks).
`downloads.py` fetches corpora, `search.py` tunes: both only when asked.
Importing the package loads nothing but torch; figures and frozen values are read when asked for.
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
