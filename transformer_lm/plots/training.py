"""Curves of a training run, drawn once or updated in a notebook during training."""

from transformer_lm.modeling_lm import TransformerLM
from transformer_lm.training.callbacks import has_news
from transformer_lm.training.loop import History


class LiveCurves:
    """Draws loss, gradient norm and learning rate in a notebook, and redraws them during training."""

    def __init__(self, every: int = 20) -> None:
        self.every = every
        self._handle = None

    def __call__(self, model: TransformerLM, history: History) -> None:
        """Draw the curves so far, if they are due or there is a new validation loss, as at the end of a run."""
        if history.step % self.every and not has_news(history):
            return
        from IPython.display import display  # only needed for drawing

        from transformer_lm.plots.pictures import picture

        alt = f"Loss, gradient norm and learning rate of {history.step} steps; the last loss is {history.loss[-1]:.2f}."
        drawn = picture(curves(history), alt)
        if self._handle is None:
            self._handle = display(drawn, raw=True, display_id=True)
        else:
            self._handle.update(drawn, raw=True)


def curves(history: History):
    """Return a figure of loss, gradient norm and learning rate by step."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
    steps = range(1, history.step + 1)
    axes[0].plot(steps, history.loss, color="0.7", label="training, one batch")
    if history.validation:
        axes[0].plot(*zip(*history.validation, strict=True), "o-", color="C0", label="validation")
    axes[0].legend()
    axes[1].plot(steps, history.gradient_norm, color="C1")
    axes[1].set_yscale("log")
    axes[2].plot(steps, history.learning_rate, color="C2")
    for axis, name in zip(
        axes, ("loss (nats per token)", "gradient norm before clipping", "learning rate"), strict=True
    ):
        axis.set(xlabel="step", ylabel=name)
    return figure
