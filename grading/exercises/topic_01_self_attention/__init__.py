"""The exercises of topic 01: self-attention."""
