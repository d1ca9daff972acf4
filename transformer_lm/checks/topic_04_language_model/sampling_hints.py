"""The hints that the check of topic 04 gives for a wrong sampled continuation."""

# What the model reads, and which position is used.
TRAINING = "The model samples in train mode, with all its dropout: switch it to eval mode before it is called."
LEFT_IN_EVAL = "The model was in train mode before and is in eval mode after the call: give it back as it was."
LEFT_IN_TRAINING = "The model was in eval mode before and is in train mode after the call: give it back as it was."
GRADIENTS = "The model computes for gradients that nobody needs: sample without them, to save time and memory."
NOT_CROPPED = "The model reads at most max_len tokens: the text grows with each token, what is read must not."
CROPPED_TO_FIRST = "The model always reads the beginning of the text: it is the last max_len tokens that matter."
CROPPED_TOO_SHORT = "The model reads one token fewer than it could: the last max_len tokens, not max_len - 1."
LAST_TOKEN_ONLY = "The model reads nothing but the last token: everything before it is forgotten."
PROMPT_ONLY = "The model reads nothing but the prompt: each new token must be read before the next one is sampled."
ONE_POSITION_EARLY = "The logits are those of the last position but one: they tell what comes after that one."
FIRST_POSITION = "The logits are those of the first position: which one tells what comes after the whole text?"
OTHER_TEXT = "What comes does not follow from the text: which tokens does the model read, and whose logits do you take?"

# What is returned.
NO_PROMPT = "The prompt is missing: return it together with the tokens that follow it."
PROMPT_CUT = "The beginning of the prompt is missing: what the model cannot read still belongs to the result."
ON_THE_LEFT = "The new tokens stand in front of the prompt: a text grows at its end."
PROMPT_CHANGED = "The result must begin with the prompt, as it was given."
ONE_TOO_FEW = "One token is missing at the end: num_tokens new ones were asked for."
ONE_TOO_MANY = "There is one token too many at the end: num_tokens new ones were asked for."
NUM_TOKENS_IN_ALL = "The result has num_tokens in all: so many should be added to the prompt."
OTHER_SHAPE = "The result has a row for each prompt: its n tokens, then num_tokens new ones."
PLACES = "This is the place among the top_k, not the token itself: look the token up in the indices."
NO_TOKENS = "There are numbers that stand for no token: they should go from 0 to v - 1."

# How tokens are chosen.
ZERO = "At temperature 0 the most likely token must come, always; dividing by 0 does not give that."
STILL_RANDOM = "With top_k=1 only the most likely token may come: is the choice limited to the top_k before it is made?"
ALWAYS_FIRST = "It is always the most likely token that comes: sample one, by the probabilities."
SAME_FOR_ALL = "All rows get the same tokens: sample for each row by itself."
ROWS_TOGETHER = "A row's token tells that of another one: sample for each row by itself."
STEPS_TOGETHER = "A token tells how likely the next one is: draw anew for each of them."
TOO_MANY = "Tokens come that are not among the top_k: all others must have no chance at all."
SMALLEST = "The least likely tokens come: the largest logits are those of the most likely ones."
TOO_FEW = "Only top_k - 1 different tokens come: the last of the top_k must have its chance, too."
TEMPERATURE_IGNORED = "The temperature changes nothing: it must act on the logits, before the softmax."
TEMPERATURE_MULTIPLIED = (
    "The temperature works the wrong way round: above 1 it should even out the chances, below 1 not."
)
SOFTMAX_TWICE = "The chances are too even: is there a softmax of a softmax?"
TOP_K_AFTER = "The most likely token comes too often: limit the choice to the top_k before sampling, not after it."
EQUAL_CHANCES = "All of the top_k come equally often: does the softmax run over the tokens, and do its numbers count?"
OTHER_CHANCES = (
    "The tokens come with other chances than the softmax of logits / temperature, among the top_k, gives them."
)
