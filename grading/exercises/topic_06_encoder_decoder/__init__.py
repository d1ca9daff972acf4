"""The exercises of topic 06: an encoder and a decoder."""
