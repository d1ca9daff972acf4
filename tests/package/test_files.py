"""A file that is replaced is always the complete old one or the complete new one, whenever the process is killed."""

import multiprocessing
import os
import signal
import stat

import pytest

from transformer_lm.files import replacing, write_whole

OLD, NEW = b"old" * 1000, b"new" * 2000


def write_and_be_killed(path, call: int) -> None:
    """Write a file in this process, which is killed before the given call that changes something on the disk."""
    calls = 0

    def killing(change):
        def changed(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments, **options)

        return changed

    for name in ("mkdir", "open", "fsync", "replace", "rmdir", "unlink"):
        setattr(os, name, killing(getattr(os, name)))
    with replacing(path) as written, written.open("wb") as file:
        for start in range(0, len(NEW), 1000):
            file.write(NEW[start : start + 1000])
            file.flush()
            killing(lambda: None)()


def test_a_file_is_the_old_or_the_new_one_wherever_its_writer_is_killed(tmp_path):
    path = tmp_path / "file.json"
    contents = []
    for call in range(1, 100):
        path.write_bytes(OLD)
        process = multiprocessing.get_context("fork").Process(target=write_and_be_killed, args=(path, call))
        process.start()
        process.join()
        contents.append(path.read_bytes())
        if process.exitcode == 0:
            break
    assert process.exitcode == 0
    assert len(contents) > 8  # killed at several moments
    assert set(contents) == {OLD, NEW}
    assert contents == sorted(contents, reverse=True)  # first the old one, then the new one
    write_whole(path, OLD)  # files left behind are in the way of nothing
    assert path.read_bytes() == OLD


def test_an_error_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path):
    path = tmp_path / "file.json"
    write_whole(path, OLD)
    with pytest.raises(TypeError), replacing(path) as written, written.open("wb") as file:
        file.writelines([NEW, None])
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["file.json"]


def test_what_is_written_can_be_read_by_others_and_has_the_line_ends_that_it_was_given(tmp_path):
    path = tmp_path / "new" / "file.txt"
    write_whole(path, "é\n\r\n")
    assert path.read_bytes() == b"\xc3\xa9\n\r\n"
    beside = path.with_name("beside")
    beside.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(beside.stat().st_mode)
