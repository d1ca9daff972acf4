"""Small pre-trained models that come with the course, for the analysis of their heads.

`bench/heads.py` and `bench/translation.py` can train them again.
"""

from pathlib import Path

from transformer_lm.texts.tokenizers import Tokenizer
from transformer_lm.texts.word_tokenizers import PairTokenizer
from transformer_lm.training.checkpoints import Model, load_model

FOLDER = Path(__file__).parents[1] / "pretrained"


def load_trained(name: str) -> tuple[Model, Tokenizer | PairTokenizer]:
    """Return a trained model and its tokenizer, in eval mode.

    "toy" was trained on sentences of the toy grammar and repeated random text, "shakespeare" on the text of
    `load_shakespeare`, "hebrew" on the Hebrew Bible of `load_hebrew`. "lorin" translates into the toy language
    Lorin: see toy_languages.py.

    Raises ValueError for an unknown name.
    """
    names = sorted(path.stem for path in FOLDER.glob("*.safetensors"))
    if name not in names:
        raise ValueError(f"name must be one of {', '.join(names)}, got {name!r}.")
    return load_model(FOLDER / f"{name}.safetensors")
