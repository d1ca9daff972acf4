"""The checks of topic 03: classification."""
