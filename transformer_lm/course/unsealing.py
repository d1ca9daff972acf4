"""Run the package's answers to open exercises without showing them.

While a topic is open, the students' package holds some of its answers only as signatures and docstrings, and the code
that runs as a compressed file in `sealed/`. So a model can be trained, but the answers cannot be read or copied by
accident. This is a curtain, not a lock: the files can be unpacked, and the course is public.
"""

import zlib
from pathlib import Path

FOLDER = "sealed"


def sealed_path(module: str) -> Path:
    """Return the path of the sealed text of a module, such as `checks.labels`."""
    return Path(FOLDER) / f"{module}.bin"


def seal(text: bytes) -> bytes:
    """Return the text of a module in sealed form."""
    return zlib.compress(text, 9)


def unseal(namespace: dict[str, object]) -> None:
    """Execute the sealed text of a module in its own namespace, the `globals()` of its last line.

    Its functions have no readable source, because their file does not exist.
    """
    package, _, module = str(namespace["__name__"]).partition(".")
    text = zlib.decompress((Path(__file__).parents[1] / sealed_path(module)).read_bytes())
    exec(compile(text, f"<sealed {package}.{module}>", "exec", dont_inherit=True), namespace)
