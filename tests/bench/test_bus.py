"""The bus benchmark measures the real path and leaves nothing behind; its figures are not judged here."""

from __future__ import annotations

import pytest

from zmqrl.bench import bus
from zmqrl.bench.bus_processes import segment_columns
from zmqrl.bus_ends.learner_end import TakenSegment
from zmqrl.errors import TrainingFailed
from zmqrl.types import SegmentId, SegmentMeta, SlotRef, Version

pytestmark = pytest.mark.whole
TINY = segment_columns(2, 1, "float32", (4,))


def test_segments_go_the_whole_way() -> None:
    assert bus.path_segments_per_s(TINY, workers=2, leases=2, seconds=0.1) > 0


def test_a_segment_out_of_turn_is_an_error() -> None:
    checked = bus._Checked(2, 1)
    first, third = (TakenSegment(SlotRef(i, 1), SegmentMeta(SegmentId(0, 0, i), Version(0, 0), 2)) for i in (0, 2))
    checked.take([first])
    with pytest.raises(TrainingFailed, match="where index 1 was due"):
        checked.take([third])
