"""The checks of topic 05: attention heatmaps."""
