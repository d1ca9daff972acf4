"""The checks of topic 01: self-attention."""
