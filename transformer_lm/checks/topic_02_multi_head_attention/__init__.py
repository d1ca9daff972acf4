"""The checks of topic 02: multi-head attention."""
