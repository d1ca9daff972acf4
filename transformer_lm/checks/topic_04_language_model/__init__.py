"""The checks of topic 04: a language model."""
