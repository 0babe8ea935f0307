from __future__ import annotations

from pathlib import Path

from zmqrl.logs.standard_output import TAIL_BYTES, TAIL_LINES, tail_of


def test_what_came_before_is_left_out_unless_the_log_was_emptied_since(tmp_path: Path) -> None:
    log = tmp_path / "h-worker-0.log"
    log.write_text("old\nnew\nlast\n")
    assert tail_of(log) == ("old", "new", "last")
    assert tail_of(log, 4) == ("new", "last")
    assert tail_of(log, 100) == ("old", "new", "last")


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "h-worker-0.log"
    lines = [f"line {n}" for n in range(TAIL_BYTES)]
    log.write_text("\n".join(lines))
    assert tail_of(log) == tuple(lines[-TAIL_LINES:])
    log.write_bytes(b"a" * TAIL_BYTES + b"\xff\n")
    (only,) = tail_of(log)
    assert (len(only), only[-1]) == (TAIL_BYTES - 1, "\N{REPLACEMENT CHARACTER}")
