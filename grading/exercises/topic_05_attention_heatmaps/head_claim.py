"""The exercise of topic 05 about a claim: what one head of a trained model does, with the supporting numbers."""

from grading.judging.head_claims import claimed_ablation, claimed_numbers, claimed_pattern
from grading.judging.record import Part, Record, WrongAnswer, edited
from transformer_lm.checks.topic_05_attention_heatmaps.head_claim import (
    ENTRIES,
    HEAD_CLAIM,
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


def wrong(name: str, *fails: str, of: tuple[int, int, str] = CHOSEN, hint: str = "", **changes: object) -> WrongAnswer:
    """Return the claim about a head with other values for some entries; it fails these parts, or all."""
    entries = dict(zip(ENTRIES, (*of, *QUALIFY[of]), strict=True))
    entries["pattern"] = f'"{of[2]}"'
    edits = ((f'"{entry}": {entries[entry]},', f'"{entry}": {value},') for entry, value in changes.items())
    return edited(name, claim_about(of), *edits, fails=fails or EVERYTHING, hint=hint)


MISBEHAVING = (
    # Other heads.
    WrongAnswer("another-head", claim_about(WEAK, numbers_of=CHOSEN), EVERYTHING, hint="little-weight"),
    WrongAnswer(
        "the-numbers-of-another-head",
        claim_about(CHOSEN, numbers_of=WEAK),
        (NUMBERS, ABLATION),
        hint="numbers-of-another-head",
    ),
    wrong("layer-and-head-exchanged", of=(1, 3, "induction"), layer=3, head=1, hint="places-from-zero"),
    wrong("layers-counted-from-one", layer=2, hint="places-from-zero"),
    wrong("heads-counted-from-one", of=(1, 3, "induction"), head=4, hint="places-from-zero"),
    wrong("layers-counted-from-the-end", layer=-1, hint="places-from-zero"),
    wrong("half-a-layer", layer=0.5, hint="places-from-zero"),
    # Other patterns.
    wrong("the-pattern-of-another-head", pattern='"previous"', hint="little-weight"),
    WrongAnswer("too-small-a-score", claim_about(WEAK), (PATTERN,), hint="little-weight"),
    WrongAnswer("no-more-than-chance", claim_about(LIKE_CHANCE), (PATTERN,)),
    wrong("a-name-of-its-own", pattern='"induction head"', hint="unknown-pattern"),
    wrong("a-capital", pattern='"Induction"', hint="unknown-pattern"),
    wrong("no-name", pattern='""', hint="unknown-pattern"),
    wrong("a-distance", pattern='"offset 1"', hint="unknown-pattern"),
    wrong("a-number-for-a-name", pattern=12, hint="unknown-pattern"),
    wrong("a-name-without-end", pattern='"induction" * 1000', hint="unknown-pattern"),
    wrong("names-in-a-list", pattern='["induction"]', hint="unknown-pattern"),
    # Other numbers.
    wrong("percentages", score=81.2, chance=4.6, null=6.8, hint="score-not-a-share"),
    wrong("chance-and-null-exchanged", NUMBERS, of=PREVIOUS, chance=0.398, null=0.059),
    wrong("the-excess-for-the-score", NUMBERS, of=SPACES, score=0.217),
    wrong("no-baselines", NUMBERS, of=SPACES, chance=0.0, null=0.0, hint="not-as-measured"),
    wrong("baselines-of-zero", NUMBERS, chance=0.0, null=0.01, hint="not-as-measured-on-repeats"),
    wrong("baselines-of-a-tenth", NUMBERS, chance=0.1, null=0.1, hint="not-as-measured-on-repeats"),
    wrong("another-chance", NUMBERS, chance=0.1, hint="not-as-measured-on-repeats"),
    wrong("a-rough-score", NUMBERS, score=0.7, hint="not-as-measured-on-repeats"),
    wrong("a-rough-change", ABLATION, loss_change=6.0, hint="not-as-ablated"),
    wrong("a-small-change-in-bits", ABLATION, of=SPACES, loss_change=0.13, hint="not-as-ablated"),
    wrong("the-score-for-the-null", NUMBERS, null=SCORE, hint="not-as-measured-on-repeats"),
    wrong("invented", NUMBERS, ABLATION, score=0.95, null=0.2, loss_change=1.0, hint="not-as-measured-on-repeats"),
    wrong("wrong-sign", ABLATION, loss_change=-CHANGE),
    wrong("the-loss", ABLATION, of=SPACES, loss_change=SPACES_LOSS),
    wrong("the-loss-without-the-head", ABLATION, of=SPACES, loss_change=SPACES_LOSS + 0.084, hint="the-loss"),
    wrong("over-all-predictions", ABLATION, loss_change=OVERALL),
    wrong("in-bits", ABLATION, loss_change=round(CHANGE / 0.693, 3), hint="not-as-ablated"),
    wrong("no-change", ABLATION, loss_change=0.0, hint="not-as-ablated"),
    wrong("no-small-change", ABLATION, of=SPACES, loss_change=0.0, hint="not-as-ablated"),
    WrongAnswer("nothing-depends-on-it", claim_about(USELESS), (PATTERN, ABLATION)),
    # No numbers.
    wrong("a-text-for-a-number", score=f'"{SCORE}"', hint="score-not-a-share"),
    wrong("a-text-for-a-change", loss_change='"much"', hint="change-not-a-number"),
    wrong("not-a-number", null='float("nan")', hint="score-not-a-share"),
    wrong("a-change-that-is-no-number", loss_change='float("nan")', hint="change-not-a-number"),
    wrong("an-endless-change", loss_change="1e999", hint="change-not-a-number"),
    wrong("a-huge-number", loss_change="10**400", hint="change-not-a-number"),
    wrong("a-huge-layer", layer="10**400", hint="places-from-zero"),
    wrong("true-for-one", layer=True, hint="places-from-zero"),
    wrong("true-for-a-score", score=True, hint="score-not-a-share"),
    wrong("scores-of-all-heads", score="torch.rand(2, 4)", hint="score-not-a-share"),
    # No claim.
    edited(
        "an-entry-missing", MODEL_ANSWER, (f'    "null": {NULL},\n', ""), fails=EVERYTHING, hint="entries-of-a-claim"
    ),
    edited(
        "an-entry-too-many",
        MODEL_ANSWER,
        ("}", '    "why": "it copies",\n}'),
        fails=EVERYTHING,
        hint="entries-of-a-claim",
    ),
    edited(
        "another-name-for-an-entry",
        MODEL_ANSWER,
        ('"loss_change"', '"change"'),
        fails=EVERYTHING,
        hint="entries-of-a-claim",
    ),
    WrongAnswer("a-list", f"claim = {[*CHOSEN, *QUALIFY[CHOSEN]]}\n", EVERYTHING, hint="claim-not-a-dictionary"),
    WrongAnswer("a-text", 'claim = "head 1 of layer 1 copies"\n', EVERYTHING, hint="claim-not-a-dictionary"),
    WrongAnswer("nothing", "claim = None\n", EVERYTHING, hint="claim-not-a-dictionary"),
    WrongAnswer("several-claims", MODEL_ANSWER + "claim = [claim, claim]\n", EVERYTHING, hint="claim-not-a-dictionary"),
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
    parts=(Part(NUMBERS, 2, claimed_numbers), Part(PATTERN, 2, claimed_pattern), Part(ABLATION, 2, claimed_ablation)),
    model_answer=MODEL_ANSWER,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
