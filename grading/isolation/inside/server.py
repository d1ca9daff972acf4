"""The answer process: runs a student's cells in a confined fork and computes what the judge asks for.

This process has imported torch and holds nothing secret: no reference, no expected value, no other student's work. It
reads one byte at a time from the judge: `f`, with a connection, forks an answer; `t` asks how long it has run and
waited for a processor; `k` kills it. The answer talks to the judge over that connection. It sends arrays, and texts for
its own student to read, but never a verdict.
"""

import gc
import importlib
import os
import pkgutil
import signal
import socket
import sys
from contextlib import suppress

import confine
import messages


def main() -> None:
    """Serve until the judge has ended."""
    strict = "--strict" in sys.argv
    confine.leave_keyring()
    if strict:  # otherwise another user might not even be allowed to read Python's files
        confine.become_unprivileged()
    control = socket.socket(fileno=os.dup(0))
    _import_what_answers_use()
    try:
        confine.cover(importlib.import_module("forbid").SOURCES)
    except OSError:
        if strict:
            raise
    _stay_on_own_cores()
    gc.freeze()  # everything loaded now is shared by all answers
    control.sendall(b"r")
    while True:
        order, descriptors, *_ = socket.recv_fds(control, 1, 1)
        if not order:
            return
        connection = socket.socket(fileno=descriptors[0])
        answer = confine.fork_confined(lambda given=connection: _answer(given, control), strict)
        connection.close()
        while (order := control.recv(1)) == b"t":  # blocks while the answer works; ends when the judge has ended, too
            control.sendall(b"".join(time.to_bytes(8, "big") for time in confine.times(answer)))
        status = confine.kill(answer)
        if order:
            control.sendall(status.to_bytes(4, "big"))


def _import_what_answers_use() -> None:
    """Load the packages once, before any fork, so that an answer starts within milliseconds."""
    import matplotlib.pyplot  # noqa: F401
    import torch

    import transformer_lm
    from transformer_lm.checks.engine.calling import ProductCounter

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(transformer_lm.__path__, "transformer_lm."):
        importlib.import_module(module.name)
    importlib.import_module("answering")
    # torch loads more modules the first time that its operations are counted.
    with ProductCounter():
        torch.ones(2, 2) @ torch.ones(2, 2)


def _stay_on_own_cores() -> None:
    """Leave the other cores to the answers of other processes; answers inherit this and can't change it."""
    cores = [int(argument.partition("=")[2]) for argument in sys.argv if argument.startswith("--core=")]
    if cores:
        with suppress(OSError):  # the core may no longer be available
            os.sched_setaffinity(0, cores)


def _answer(connection: socket.socket, control: socket.socket) -> None:
    """Run the cells that the judge sends, then answer its requests until it hangs up."""
    from answering import serve

    control.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    keep = connection.fileno()
    os.closerange(3, keep)
    os.closerange(keep + 1, 1024)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with suppress(messages.Disconnected):
        serve(connection)


if __name__ == "__main__":
    main()
