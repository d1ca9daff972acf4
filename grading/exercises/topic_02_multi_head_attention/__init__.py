"""The exercises of topic 02: multi-head attention."""
