"""The exercises of topic 04: a language model."""
