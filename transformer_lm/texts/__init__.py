"""The data of models: corpora and their sources, tokenizers, pairs of sentences, batches."""

from transformer_lm.lazily import exported

__all__, __getattr__ = exported(
    __name__,
    {
        "batching": (
            "batches_by_length",
            "padded",
            "padded_batches",
            "padding_share",
        ),
        "corpora": (
            "Corpus",
            "load_corpus",
            "load_hebrew",
            "load_shakespeare",
            "load_text",
            "load_toy",
            "load_wp",
        ),
        "pairs": (
            "PairCorpus",
            "load_french",
            "load_pairs",
            "load_toy_pairs",
            "padded_pairs",
            "pair_batches",
        ),
        "tokenizers": (
            "ByteTokenizer",
            "CharTokenizer",
            "ShownText",
            "load_tokenizer",
            "right_to_left",
        ),
        "toy_grammar": (
            "entropy_per_character",
            "grammatical_share",
            "is_grammatical",
            "sentences",
        ),
        "toy_languages": (
            "english_words",
            "lorin_words",
            "toy_sentences",
            "toy_translation",
        ),
        "word_tokenizers": (
            "END",
            "PAD",
            "START",
            "BytePairTokenizer",
            "PairTokenizer",
            "WordTokenizer",
        ),
    },
)
