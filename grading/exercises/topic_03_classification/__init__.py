"""The exercises of topic 03: classification."""
