"""The two lines at the top of the live view: which run, and how far it is. They keep their places as numbers grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

BAR = "━"
LEAST_BAR, MOST_BAR = 4, 40
DAY_S = 86_400


def header(status: Mapping[str, Any], width: int) -> list[Text]:
    """Run id, mode, phase and time; then bar, env steps and the time that is left.

    A run id is never cut: where it does not fit, mode and phase are left out, and then the first line is folded.
    """
    return [_title(status, width), _progress(status, width)]


def duration(seconds: float) -> str:
    """`h:mm:ss`, from a day on `2 d 3 h`."""
    whole = int(seconds)
    if whole >= DAY_S:
        return f"{whole // DAY_S} d {whole % DAY_S // 3600} h"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def wrapped(pieces: Iterable[Text], width: int) -> list[Text]:
    """The pieces in as few lines as they need, two spaces apart; a piece is not divided."""
    lines: list[Text] = []
    for piece in pieces:
        if lines and len(lines[-1]) + 2 + len(piece) <= width:
            lines[-1].append("  ").append_text(piece)
        else:
            lines.append(Text().append_text(piece))
    return lines


def _title(status: Mapping[str, Any], width: int) -> Text:
    """Left the run, right the time."""
    run_id, time = status["run_id"], duration(status["wall_s"])
    words = [status["mode"], status.get("phase", "")]
    while words and len(" ".join(["zmqrl", run_id, *words, "", time])) > width:
        words.pop()
    left = Text("zmqrl ", style="dim").append(run_id, style="bold not dim").append(" ".join(["", *words]))
    return left.append(time.rjust(max(1 + len(time), width - len(left))), style="bold not dim")


def _progress(status: Mapping[str, Any], width: int) -> Text:
    done = status["progress"]
    left = f"{100 * done:3.0f}%"
    for form in ("{:,}".format, _shortened):
        steps = f"{form(status['env_steps'])}/{form(status['total_env_steps'])} env steps"
        right = "  ".join([left, steps, *_left(status)])
        if width - len(right) - 2 >= LEAST_BAR:
            break
    size = max(LEAST_BAR, min(MOST_BAR, width - len(right) - 2))
    filled = round(size * done)
    bar = Text(BAR * filled, style="green").append(BAR * (size - filled), style="bright_black")
    return bar.append(f"  {right}", style="default")


def _left(status: Mapping[str, Any]) -> list[str]:
    """A run with `run.stop_at_return` may end before its env steps do."""
    if status["eta_s"] is None:
        return []
    at_most = "" if status.get("stop_at_return") is None else "at most "
    return [f"eta {at_most}{duration(status['eta_s'])}"]


def _shortened(number: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)
