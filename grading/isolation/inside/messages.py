"""Messages between the judge and an answer: a JSON table and safetensors arrays, never pickle.

The receiver trusts nothing in a message: its size is limited, and JSON and safetensors contain data, not code.
"""

import json
import math
import socket
import struct
from typing import Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

LIMIT = 64 * 2**20  # bytes of the arrays
NUMBERS = 3 * 10**6  # in one output of an answer; no right output has more, whatever the sizes
TEXT_LIMIT = 4 * 2**20  # bytes of the table, which may take thirty times as much memory

_SIZES = struct.Struct("!II")  # of the table, of the arrays


class Received(Protocol):
    """The end of a connection that messages come out of, such as a socket."""

    def recv(self, size: int, /) -> bytes:
        """Return some of the next bytes, at most this many; none if the other side has closed the connection."""


class Disconnected(Exception):
    """The other side is gone."""


class MalformedMessage(Exception):
    """The data received is not a message."""


def send(connection: socket.socket, table: dict, arrays: dict[str, np.ndarray] | None = None) -> None:
    """Send a table and named arrays."""
    text = json.dumps(table).encode()
    # safetensors takes the bytes of an array in memory order.
    data = save({name: np.array(array, order="C") for name, array in arrays.items()}) if arrays else b""
    try:
        connection.sendall(_SIZES.pack(len(text), len(data)) + text + data)
    except OSError as error:
        raise Disconnected(str(error)) from error


def receive(connection: Received) -> tuple[dict, dict[str, np.ndarray]]:
    """Return the next table and its arrays.

    Raises Disconnected when the other side is gone, TimeoutError when the connection's timeout has passed, and
    MalformedMessage when the message is too long or not in the format of `send`.
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
        # An array without entries takes no bytes whatever its other sizes, but results computed from it could take
        # many.
        if not array.size and math.prod(max(1, side) for side in array.shape) > NUMBERS:
            raise MalformedMessage(f"an array without entries must have short sides, got {array.shape}.")
    return table, arrays


def _read(connection: Received, size: int) -> bytes:
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
