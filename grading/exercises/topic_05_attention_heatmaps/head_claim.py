"""The exercise of topic 05 about a claim: what one head of a trained model does, with the supporting numbers."""

from grading.judging.head_claims import claimed_ablation, claimed_numbers, claimed_pattern
from grading.judging.record import Part, Record, WrongAnswer, edited
from transformer_lm.checks.topic_05_attention_heatmaps.head_claim import (
    ABLATE,
    ENTRIES,
    HEAD_CLAIM,
    MEASURE,
    MEASURE_REPEATS,
)

NUMBERS, PATTERN, ABLATION = "head-claim-numbers", "head-claim-pattern", "head-claim-ablation"
EVERYTHING = (NUMBERS, PATTERN, ABLATION)

# Score, chance, null and increase of the loss for heads of the toy model, measured in tests/judging/test_head_claim.py.
# Heads that do what the name says:
QUALIFY = {
    (1, 1, "induction"): (0.812, 0.046, 0.068, 4.377),
    (1, 3, "induction"): (0.533, 0.046, 0.061, 0.102),
    (1, 0, "any_space"): (0.403, 0.186, 0.175, 0.084),
    (0, 3, "previous"): (0.395, 0.059, 0.398, 0.639),
    (1, 2, "previous"): (0.395, 0.059, 0.401, 0.067),
    (1, 1, "current"): (0.48, 0.074, 0.51, 0.03),
}
# Heads that do not: a small score, no more than chance, or no effect on the loss.
WEAK, LIKE_CHANCE, USELESS = (1, 2, "induction"), (0, 3, "vowel_to_consonant"), (1, 0, "induction")
OTHERS = {
    WEAK: (0.125, 0.046, 0.032, 0.068),
    LIKE_CHANCE: (0.556, 0.49, 0.536, 0.852),
    USELESS: (0.022, 0.046, 0.015, -0.016),
}
OVERALL = 3.4  # the increase of the loss over all predictions but the first
PREVIOUS = (0, 3, "previous")
SPACES, SPACES_LOSS = (1, 0, "any_space"), 0.458  # the loss after a space


def claimed(layer: int, head: int, pattern: str, score: float, chance: float, null: float, loss_change: float) -> str:
    """Return the text of a claim."""
    return f"""\
claim = {{
    "layer": {layer},
    "head": {head},
    "pattern": "{pattern}",
    "score": {score},
    "chance": {chance},
    "null": {null},
    "loss_change": {loss_change},
}}
"""


def claim_about(head: tuple[int, int, str], numbers_of: tuple[int, int, str] | None = None) -> str:
    """Return the claim about a head, with its own numbers or those of another head."""
    return claimed(*head, *(QUALIFY | OTHERS)[numbers_of or head])


CHOSEN, *REST = QUALIFY
MODEL_ANSWER = claim_about(CHOSEN)
SCORE, CHANCE, NULL, CHANGE = QUALIFY[CHOSEN]


def wrong(name: str, hint: str, *fails: str, of: tuple[int, int, str] = CHOSEN, **changes: object) -> WrongAnswer:
    """Return the claim about a head with other values for some entries; it fails these parts, or all."""
    entries = dict(zip(ENTRIES, (*of, *QUALIFY[of]), strict=True))
    entries["pattern"] = f'"{of[2]}"'
    edits = ((f'"{entry}": {entries[entry]},', f'"{entry}": {value},') for entry, value in changes.items())
    return edited(name, hint, claim_about(of), *edits, fails=fails or EVERYTHING)


COUNTED = "Layers and heads are counted from 0, and the layer comes first."
ANOTHER = "Another head has these numbers: layers and heads are counted from 0, and the layer comes first."
SHARES = "Scores are shares of the weight: numbers between 0 and 1, not percentages or texts."
ONE_NUMBER = "The change of a loss is one number, in nats."
NAMES = "The head gives little to the keys of this pattern: find one that gives more, or what this one does."
UNKNOWN = "Patterns are current, previous, first,"
FILL_IN = "Fill in the dictionary that was given."
UNDER_NAMES = "A claim has the head, its pattern and four numbers, under the names that were given."
SIGN = "The sign is wrong: a change is the loss without the head, minus the loss with it."

MISBEHAVING = (
    # Other heads.
    WrongAnswer("another-head", NAMES, claim_about(WEAK, numbers_of=CHOSEN), EVERYTHING),
    WrongAnswer("the-numbers-of-another-head", ANOTHER, claim_about(CHOSEN, numbers_of=WEAK), (NUMBERS, ABLATION)),
    wrong("layer-and-head-exchanged", COUNTED, of=(1, 3, "induction"), layer=3, head=1),
    wrong("layers-counted-from-one", COUNTED, layer=2),
    wrong("heads-counted-from-one", COUNTED, of=(1, 3, "induction"), head=4),
    wrong("layers-counted-from-the-end", COUNTED, layer=-1),
    wrong("half-a-layer", COUNTED, layer=0.5),
    # Other patterns.
    wrong("the-pattern-of-another-head", NAMES, pattern='"previous"'),
    WrongAnswer("too-small-a-score", NAMES, claim_about(WEAK), (PATTERN,)),
    WrongAnswer("no-more-than-chance", "compare the score with chance", claim_about(LIKE_CHANCE), (PATTERN,)),
    wrong("a-name-of-its-own", UNKNOWN, pattern='"induction head"'),
    wrong("a-capital", UNKNOWN, pattern='"Induction"'),
    wrong("no-name", UNKNOWN, pattern='""'),
    wrong("a-distance", UNKNOWN, pattern='"offset 1"'),
    wrong("a-number-for-a-name", UNKNOWN, pattern=12),
    wrong("a-name-without-end", UNKNOWN, pattern='"induction" * 1000'),
    wrong("names-in-a-list", UNKNOWN, pattern='["induction"]'),
    # Other numbers.
    wrong("percentages", SHARES, score=81.2, chance=4.6, null=6.8),
    wrong("chance-and-null-exchanged", "Chance and null are exchanged", NUMBERS, of=PREVIOUS, chance=0.398, null=0.059),
    wrong("the-excess-for-the-score", "give the score itself", NUMBERS, of=SPACES, score=0.217),
    wrong("no-baselines", MEASURE, NUMBERS, of=SPACES, chance=0.0, null=0.0),
    wrong("baselines-of-zero", MEASURE_REPEATS, NUMBERS, chance=0.0, null=0.01),
    wrong("baselines-of-a-tenth", MEASURE_REPEATS, NUMBERS, chance=0.1, null=0.1),
    wrong("a-rough-score", MEASURE_REPEATS, NUMBERS, score=0.7),
    wrong("a-rough-change", ABLATE, ABLATION, loss_change=6.0),
    wrong("a-small-change-in-bits", ABLATE, ABLATION, of=SPACES, loss_change=0.13),
    wrong("the-score-for-the-null", MEASURE_REPEATS, NUMBERS, null=SCORE),
    wrong("invented", MEASURE_REPEATS, NUMBERS, ABLATION, score=0.95, null=0.2, loss_change=1.0),
    wrong("wrong-sign", SIGN, ABLATION, loss_change=-CHANGE),
    wrong("the-loss", "This is a loss", ABLATION, of=SPACES, loss_change=SPACES_LOSS),
    wrong("the-loss-without-the-head", "This is a loss", ABLATION, of=SPACES, loss_change=SPACES_LOSS + 0.084),
    wrong("over-all-predictions", "the change over all predictions", ABLATION, loss_change=OVERALL),
    wrong("in-bits", ABLATE, ABLATION, loss_change=round(CHANGE / 0.693, 3)),
    wrong("no-change", ABLATE, ABLATION, loss_change=0.0),
    WrongAnswer("nothing-depends-on-it", "choose one that it needs", claim_about(USELESS), (PATTERN, ABLATION)),
    # No numbers.
    wrong("a-text-for-a-number", SHARES, score=f'"{SCORE}"'),
    wrong("a-text-for-a-change", ONE_NUMBER, loss_change='"much"'),
    wrong("not-a-number", SHARES, null='float("nan")'),
    wrong("a-change-that-is-no-number", ONE_NUMBER, loss_change='float("nan")'),
    wrong("an-endless-change", ONE_NUMBER, loss_change="1e999"),
    wrong("a-huge-number", ONE_NUMBER, loss_change="10**400"),
    wrong("a-huge-layer", COUNTED, layer="10**400"),
    wrong("true-for-one", COUNTED, layer=True),
    wrong("true-for-a-score", SHARES, score=True),
    wrong("scores-of-all-heads", SHARES, score="torch.rand(2, 4)"),
    # No claim.
    edited("an-entry-missing", UNDER_NAMES, MODEL_ANSWER, (f'    "null": {NULL},\n', ""), fails=EVERYTHING),
    edited("an-entry-too-many", UNDER_NAMES, MODEL_ANSWER, ("}", '    "why": "it copies",\n}'), fails=EVERYTHING),
    edited("another-name-for-an-entry", UNDER_NAMES, MODEL_ANSWER, ('"loss_change"', '"change"'), fails=EVERYTHING),
    WrongAnswer("a-list", FILL_IN, f"claim = {[*CHOSEN, *QUALIFY[CHOSEN]]}\n", EVERYTHING),
    WrongAnswer("a-text", FILL_IN, 'claim = "head 1 of layer 1 copies"\n', EVERYTHING),
    WrongAnswer("nothing", FILL_IN, "claim = None\n", EVERYTHING),
    WrongAnswer("several-claims", FILL_IN, MODEL_ANSWER + "claim = [claim, claim]\n", EVERYTHING),
)

ROUNDED = {head: claimed(*head, *(round(number, 2) for number in numbers)) for head, numbers in QUALIFY.items()}

RIGHT = {
    **{f"{pattern}-by-head-{layer}-{head}": claim_about((layer, head, pattern)) for layer, head, pattern in REST},
    **{f"rounded-{pattern}-{layer}-{head}": text for (layer, head, pattern), text in ROUNDED.items()},
    "numbers-of-torch": MODEL_ANSWER
    + 'claim = {name: value if name == "pattern" else torch.tensor(value) for name, value in claim.items()}\n',
    "numbers-of-numpy": "import numpy as np\n\n"
    + MODEL_ANSWER
    + 'claim = {name: value if name == "pattern" else np.float32(value) for name, value in claim.items()}\n',
    "whole-numbers-of-numpy": "import numpy as np\n\n"
    + MODEL_ANSWER
    + 'claim["layer"], claim["head"] = np.argwhere(np.ones((2, 4)))[5]\n',
    "built-up": f"""\
claim = dict(layer={CHOSEN[0]}, head={CHOSEN[1]}, pattern="{CHOSEN[2]}")
claim.update(score={SCORE}, chance={CHANCE}, null={NULL})
claim["loss_change"] = {CHANGE} + 1.5 - 1.5
""",
}

HEAD_CLAIM_RECORD = Record(
    public=HEAD_CLAIM,
    title="A claim about a head",
    defines=HEAD_CLAIM.name,
    parts=(
        Part(NUMBERS, 2, claimed_numbers),
        Part(PATTERN, 2, claimed_pattern),
        Part(ABLATION, 2, claimed_ablation),
    ),
    model_answer=MODEL_ANSWER,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
