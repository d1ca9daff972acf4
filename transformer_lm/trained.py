"""Small models that come with the course, trained beforehand: their heads are there to be read.

`bench/heads.py` trains them anew.
"""

from pathlib import Path

from transformer_lm.checkpoints import load_model
from transformer_lm.modeling_lm import TransformerLM
from transformer_lm.tokenizers import Tokenizer

FOLDER = Path(__file__).parent / "trained"


def load_trained(name: str) -> tuple[TransformerLM, Tokenizer]:
    """Return a trained model and its tokenizer, in eval mode.

    "toy" has read sentences of the toy grammar and repeated random text, "shakespeare" and "hebrew" what they say.

    Raises ValueError for another name.
    """
    names = sorted(path.stem for path in FOLDER.glob("*.safetensors"))
    if name not in names:
        raise ValueError(f"name must be one of {', '.join(names)}, got {name!r}.")
    return load_model(FOLDER / f"{name}.safetensors")
