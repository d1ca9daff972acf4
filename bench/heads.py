"""Train and measure the models whose attention heads the course studies; save them with `--write`.

    python bench/heads.py [MODEL ...] [--write]

Prints for each model the loss, the processor time of training with one thread and the patterns of its heads, and how
much longer a forward pass takes if all attention weights are recorded. All models take about a quarter of an hour.
Needs Shakespeare and Hebrew text; see data/README.md.
"""

import sys
import time
from pathlib import Path

import torch

from transformer_lm.heads.recording import record_attention
from transformer_lm.heads.repeats import with_repeats
from transformer_lm.heads.report import summary
from transformer_lm.heads.scores import measure_heads
from transformer_lm.lm import loss_per_token, random_slices
from transformer_lm.modeling_lm import TransformerLM
from transformer_lm.texts.corpora import Corpus, load_hebrew, load_shakespeare, load_toy
from transformer_lm.training.checkpoints import save_model
from transformer_lm.training.loop import train
from transformer_lm.training.presets import preset

ROOT = Path(__file__).parents[1]
GIVEN, KEPT_BACK = ROOT / "transformer_lm" / "pretrained", ROOT / "grading" / "judging" / "trained_heads"

# File name, text, fraction of repeated random text, sizes and settings, steps and learning rate.
MODELS = {
    "toy": (GIVEN, load_toy, 0.4, {"hidden": 64, "positions": "relative"}, 2500, 4e-3, 0),
    "shakespeare": (GIVEN, load_shakespeare, 0, {"hidden": 96, "positions": "rotary"}, 1500, 3e-3, 0),
    "hebrew": (GIVEN, load_hebrew, 0, {"hidden": 96, "positions": "rotary"}, 1500, 3e-3, 0),
    "toy_1": (KEPT_BACK, load_toy, 0.4, {"hidden": 64, "positions": "relative"}, 2500, 4e-3, 1),
    "toy_2": (KEPT_BACK, load_toy, 0.5, {"hidden": 64, "positions": "rotary"}, 1500, 5e-3, 0),
}


def trained(corpus: Corpus, share: float, settings: dict, steps: int, learning_rate: float, seed: int) -> TransformerLM:
    """Return a trained model of two layers with four heads; weight decay, which prevents sharp heads, is off."""
    chosen = preset("plain")
    torch.manual_seed(seed)
    model = chosen.make_model(corpus.tokenizer.vocab_size, num_layers=2, num_heads=4, norm="rms", **settings)
    recipe = chosen.make_recipe(steps=steps, batch_size=32, learning_rate=learning_rate, weight_decay=0.0, seed=seed)
    text = with_repeats(corpus, share, 2 * model.config.max_len) if share else corpus
    train(model, text, recipe, progress=sys.stderr.isatty())
    return model


def cost_of_recording(model: TransformerLM, tokens: torch.Tensor, times: int = 20) -> float:
    """Return the ratio of forward pass times with and without recording all weights."""
    seconds = []
    for read in (model, lambda tokens: record_attention(model, tokens)):
        with torch.no_grad():
            read(tokens)
            started = time.process_time()
            for _ in range(times):
                read(tokens)
        seconds.append(time.process_time() - started)
    return seconds[1] / seconds[0]


def main() -> None:
    """Train the requested models."""
    torch.set_num_threads(1)
    wanted = [name for name in sys.argv[1:] if name != "--write"] or list(MODELS)
    for name in wanted:
        folder, load, *how = MODELS[name]
        corpus = load()
        started = time.process_time()
        model = trained(corpus, *how)
        seconds, n = time.process_time() - started, model.config.max_len
        tokens = random_slices(corpus.validation, 64, n, torch.Generator().manual_seed(0))
        measured = measure_heads(model, tokens.split(16), corpus.tokenizer, progress=False)
        loss = loss_per_token(model, corpus.validation, n)
        print(f"{name}: {model.num_parameters:,} parameters, {seconds:.0f} s, loss {loss:.3f}")
        print(summary(measured))
        print(f"recording takes {cost_of_recording(model, tokens[:16]):.2f} times as long as reading\n", flush=True)
        if "--write" in sys.argv:
            folder.mkdir(exist_ok=True)
            save_model(folder / f"{name}.safetensors", model, corpus.tokenizer)


if __name__ == "__main__":
    main()
