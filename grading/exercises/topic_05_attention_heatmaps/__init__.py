"""The exercises of topic 05: attention heatmaps."""
