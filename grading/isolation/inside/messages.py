"""Messages between the judge and an answer: a table as JSON and arrays as safetensors, never pickle.

Whoever reads a message trusts nothing in it: its size is limited, JSON and safetensors hold data and no code.
"""

import json
import math
import socket
import struct

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

LIMIT = 64 * 2**20  # bytes of the arrays
NUMBERS = 3 * 10**6  # in one output of an answer: no right one has more, whatever sizes are drawn
TEXT_LIMIT = 4 * 2**20  # bytes of the table, which may take thirty times as many in memory

_SIZES = struct.Struct("!II")  # of the table, of the arrays


class Disconnected(Exception):
    """The other side is gone."""


class MalformedMessage(Exception):
    """What arrived is no message."""


def send(connection: socket.socket, table: dict, arrays: dict[str, np.ndarray] | None = None) -> None:
    """Send a table and named arrays."""
    text = json.dumps(table).encode()
    # safetensors takes an array's bytes as they lie in memory.
    data = save({name: np.array(array, order="C") for name, array in arrays.items()}) if arrays else b""
    try:
        connection.sendall(_SIZES.pack(len(text), len(data)) + text + data)
    except OSError as error:
        raise Disconnected(str(error)) from error


def receive(connection: socket.socket) -> tuple[dict, dict[str, np.ndarray]]:
    """Return the next table and its arrays.

    Raises Disconnected when the other side is gone, TimeoutError when the connection's timeout has passed, and
    MalformedMessage when it is too long or not what `send` writes.
    """
    sizes = _SIZES.unpack(_read(connection, _SIZES.size))
    if sizes[0] > TEXT_LIMIT or sizes[1] > LIMIT:
        raise MalformedMessage(f"a message must have at most {TEXT_LIMIT} + {LIMIT} bytes, got {sizes}.")
    text, data = (_read(connection, size) for size in sizes)
    try:
        table, arrays = json.loads(text), load(data) if data else {}
        table = json.loads(json.dumps(table, ensure_ascii=False).encode("utf-8", "replace"))  # no lone surrogates
    except (ValueError, RecursionError, KeyError, TypeError, SafetensorError) as error:
        raise MalformedMessage(f"a message must be JSON and safetensors, got {type(error).__name__}.") from error
    if not isinstance(table, dict):
        raise MalformedMessage(f"a message must hold a table, got {type(table).__name__}.")
    for array in arrays.values():
        # One without entries takes no byte, whatever its other sides are: what is computed from it would take many.
        if not array.size and math.prod(max(1, side) for side in array.shape) > NUMBERS:
            raise MalformedMessage(f"an array without entries must have short sides, got {array.shape}.")
    return table, arrays


def _read(connection: socket.socket, size: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < size:
        try:
            chunk = connection.recv(min(size - len(chunks), 2**20))
        except ConnectionError as error:
            raise Disconnected(str(error)) from error
        if not chunk:
            raise Disconnected("the other side has closed the connection.")
        chunks += chunk
    return bytes(chunks)
