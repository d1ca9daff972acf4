"""Attention in float64 NumPy, forwards and backwards by hand: one sequence, one head, one query at a time.

It shares no code with the package or with torch, so an error in either shows up as a difference.
"""

import numpy as np


def attend(queries, keys, values, visible):
    """Return the averages (i, dh) and the weights (i, j) of one head of one sequence."""
    weights = np.zeros((len(queries), len(keys)))
    for i, query in enumerate(queries):
        seen = np.flatnonzero(visible[i])
        scores = np.array([np.dot(query, keys[j]) / np.sqrt(len(query)) for j in seen])
        powers = np.exp(scores - scores.max())
        weights[i, seen] = powers / powers.sum()
    return weights @ values, weights


def attend_backwards(queries, keys, values, weights, upstream):
    """Return the gradients of the queries, keys and values, given that of the averages."""
    of_weights = upstream @ values.T
    of_scores = weights * (of_weights - (of_weights * weights).sum(axis=1, keepdims=True)) / np.sqrt(keys.shape[1])
    return of_scores @ keys, of_scores.T @ queries, weights.T @ upstream


def multi_head_attention(x, parameters, num_heads, visible, upstream):
    """Return a dictionary of the output, the weights (b * h, i, j), and the gradients of x and of each parameter.

    `parameters` holds weight and bias of q, k, v and mix, `visible` is (b, i, j), `upstream` the output's gradient.
    """
    columns = np.split(np.arange(len(parameters["q.bias"])), num_heads)  # the features of each head
    gradients = {name: np.zeros_like(parameter) for name, parameter in parameters.items()}
    outputs, weights, of_x = [], [], []

    def linear(name, inputs):
        return inputs @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]

    def linear_backwards(name, inputs, of_outputs):
        gradients[f"{name}.weight"] += of_outputs.T @ inputs
        gradients[f"{name}.bias"] += of_outputs.sum(axis=0)
        return of_outputs @ parameters[f"{name}.weight"]

    for sequence, mask, of_output in zip(x, visible, upstream, strict=True):
        projected = [linear(name, sequence) for name in "qkv"]
        heads = [attend(*(tensor[:, c] for tensor in projected), mask) for c in columns]
        attended = np.concatenate([average for average, _ in heads], axis=1)
        outputs.append(linear("mix", attended))
        weights += [of_head for _, of_head in heads]

        of_attended = linear_backwards("mix", attended, of_output)
        of_projected = [np.zeros_like(tensor) for tensor in projected]
        for c, (_, of_head) in zip(columns, heads, strict=True):
            results = attend_backwards(*(tensor[:, c] for tensor in projected), of_head, of_attended[:, c])
            for tensor, result in zip(of_projected, results, strict=True):
                tensor[:, c] = result
        of_x.append(sum(linear_backwards(*each) for each in zip("qkv", [sequence] * 3, of_projected, strict=True)))
    return {"output": np.stack(outputs), "weights": np.stack(weights), "x": np.stack(of_x), **gradients}
