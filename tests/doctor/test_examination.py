"""Which host receives which request, and when, without processes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as edited

from zmqrl.doctor.examination import ECHOES, Examination, HostRequests, Requests
from zmqrl.doctor.measurement import Failure
from zmqrl.messages.command import EXAMINATION
from zmqrl.messages.doctor import (
    Clock,
    EnvFacts,
    Examined,
    Folder,
    Folders,
    Listening,
    Reached,
    Seen,
    Watching,
    Written,
)
from zmqrl.messages.doctor_requests import Echo, Examine, Finish, Forget, Reach, Request, Watch, Write
from zmqrl.messages.orchestrator import Handshake

ASKED = Examine("~/zmqrl", "/nfs/rl/run", None, "sync", "1", 5.0)
REACH = Reach((), (), "")
HELLO = Handshake({"examination": str(EXAMINATION)}, 7, 1.0, node="n", user="rl", python="py")
STORE = Folders(Folder("/w", "/w", 1, None, None), Folder("/nfs/rl/run", "/nfs/rl", 1, None, None))
LISTENING = Listening((1, 2, 3), ("10.0.0.5",), "server")
LEARNER = HostRequests(ASKED, None, False)
WORKER = HostRequests(ASKED, REACH, True)
NOW = 1000.0


def begin(exam: Examination, host: str, skew_s: float = 0.0) -> Requests:
    """Up to the request that follows the last echo."""
    requests = exam.handle(host, HELLO, NOW)
    for number in range(ECHOES):
        assert requests == [(host, Echo())]
        sent = NOW + number
        exam._echoed_at[host] = sent
        requests = exam.handle(host, Clock(sent + 0.05 + skew_s), sent + 0.1)
    return requests


def two() -> Examination:
    return Examination({"gpu1": LEARNER, "node07": WORKER}, "gpu1")


def kinds(requests: Requests) -> list[tuple[str, type[Request]]]:
    return [(host, type(request)) for host, request in requests]


def with_learner(exam: Examination) -> Requests:
    begin(exam, "gpu1", skew_s=5.0)
    exam.handle("gpu1", STORE, NOW)
    exam.handle("gpu1", LISTENING, NOW)
    return exam.handle("gpu1", Examined(), NOW)


def test_the_clock_is_compared_by_half_of_the_round_trip() -> None:
    exam = two()
    assert begin(exam, "node07", skew_s=-3600.0) == [("node07", ASKED)]
    clock = exam.measurements["node07"].clock
    assert clock is not None
    assert abs(clock.skew_s + 3600.0) < 1e-6 and abs(clock.round_trip_s - 0.1) < 1e-6


def test_a_host_waits_until_the_learners_host_listens() -> None:
    exam = two()
    begin(exam, "node07")
    assert exam.handle("node07", Examined(), NOW) == []
    assert exam.is_idle("node07")
    ((host, request),) = with_learner(exam)
    assert host == "node07" and request == edited(REACH, addresses=("10.0.0.5",), ports=(1, 2, 3), server="server")
    assert not exam.is_idle("node07") and exam.is_idle("gpu1")


def test_the_token_is_written_once_it_is_watched_for_and_taken_away_when_seen() -> None:
    exam = two()
    begin(exam, "node07", skew_s=-10.0)
    with_learner(exam)
    exam.handle("node07", Examined(), NOW)
    ((host, watch),) = exam.handle("node07", Reached(()), NOW)
    assert host == "node07" and isinstance(watch, Watch) and (watch.path, watch.up) == ("/nfs/rl/run", 1)
    ((host, write),) = exam.handle("node07", Watching(None), NOW)
    assert host == "gpu1" and write == Write("/nfs/rl", watch.name, watch.token)
    exam.handle("gpu1", Written(watch.name, NOW + 5.0, None), NOW)
    requests = exam.handle("node07", Seen(watch.name, NOW - 10.0 + 0.25), NOW)
    assert requests == [("gpu1", Forget("/nfs/rl", watch.name)), ("node07", Finish())]
    store = exam.measurements["node07"].store
    assert store is not None and store.seen
    assert store.visible_s is not None and abs(store.visible_s - 0.25) < 1e-6


def watched(exam: Examination) -> Write:
    """Up to the request to write."""
    begin(exam, "node07")
    with_learner(exam)
    exam.handle("node07", Examined(), NOW)
    exam.handle("node07", Reached(()), NOW)
    ((_, write),) = exam.handle("node07", Watching(None), NOW)
    assert isinstance(write, Write)
    return write


def test_what_is_visible_before_its_write_is_reported_waits_for_the_report() -> None:
    exam = two()
    write = watched(exam)
    assert exam.handle("node07", Seen(write.name, NOW + 0.25), NOW) == []
    assert exam.is_idle("node07") and not exam.is_idle("gpu1")
    requests = exam.handle("gpu1", Written(write.name, NOW + 5.0, None), NOW)
    assert kinds(requests) == [("gpu1", Forget), ("node07", Finish)]
    assert not exam.is_idle("node07") and exam.is_idle("gpu1")
    store = exam.measurements["node07"].store
    assert store is not None and store.visible_s is not None and abs(store.visible_s - 0.25) < 1e-6


@pytest.mark.parametrize("seen_at", [None, NOW])
def test_a_wait_for_the_learners_host_to_write_ends_when_it_dies(seen_at: float | None) -> None:
    exam = two()
    write = watched(exam)
    assert exam.handle("node07", Seen(write.name, seen_at), NOW) == []
    assert exam.fail("gpu1", Failure("answer", "silence")) == [("node07", Finish())]
    store = exam.measurements["node07"].store
    assert (store is not None and store.seen) == (seen_at is not None)


def test_who_dies_while_it_waits_for_that_leaves_nothing_in_the_store() -> None:
    exam = two()
    write = watched(exam)
    exam.handle("node07", Seen(write.name, NOW), NOW)
    requests = exam.fail("node07", Failure("probe", "it ended"))
    assert requests == [("gpu1", Forget("/nfs/rl", write.name)), ("gpu1", Finish())]
    assert exam.handle("gpu1", Written(write.name, NOW, None), NOW) == []


def test_another_directory_differs_from_none() -> None:
    exam = Examination({"gpu1": LEARNER, "a": WORKER, "b": WORKER}, "gpu1")
    for host in ("a", "b"):
        begin(exam, host)
    with_learner(exam)
    for host in ("a", "b"):
        exam.handle(host, Examined(), NOW)
        exam.handle(host, Reached(()), NOW)
    assert kinds(exam.handle("a", Watching("/nfs/rl: No such file or directory"), NOW)) == [("a", Finish)]
    ((_, write),) = exam.handle("b", Watching(None), NOW)
    assert isinstance(write, Write)
    exam.handle("gpu1", Written(write.name, NOW, None), NOW)
    exam.handle("b", Seen(write.name, None), NOW)
    causes = [found.cause for host in "ab" if (found := exam.measurements[host].store) is not None]
    assert causes[0] == "/nfs/rl: No such file or directory" and "another directory" in (causes[1] or "")


def test_the_learners_host_is_kept_until_all_others_are_over() -> None:
    exam = two()
    begin(exam, "node07")
    assert kinds(with_learner(exam)) == []
    exam.handle("node07", Examined(), NOW)
    assert kinds(exam.handle("node07", EnvFacts("done"), NOW)) == [("gpu1", Finish)]
    assert not exam.done
    exam.handle("gpu1", EnvFacts("done"), NOW)
    assert exam.done


def test_without_the_learners_host_the_others_are_examined_all_the_same() -> None:
    exam = two()
    begin(exam, "node07")
    exam.handle("node07", Examined(), NOW)
    assert exam.fail("gpu1", Failure("ssh", "refused")) == [("node07", Finish())]
    assert exam.handle("node07", EnvFacts("done"), NOW) == []
    assert exam.done and exam.measurements["node07"].reached is None


def test_a_late_death_of_the_learners_host_ends_every_wait() -> None:
    exam = Examination({"gpu1": LEARNER, "a": WORKER, "b": WORKER}, "gpu1")
    for host in ("a", "b"):
        begin(exam, host)
    with_learner(exam)
    exam.handle("a", Examined(), NOW)
    assert exam.fail("gpu1", Failure("probe", "it ended")) == []
    assert kinds(exam.handle("a", Reached(()), NOW)) == [("a", Finish)]
    assert kinds(exam.handle("b", Examined(), NOW)) == [("b", Finish)]


def test_no_write_is_requested_once_the_learners_host_is_dead() -> None:
    exam = two()
    begin(exam, "node07")
    with_learner(exam)
    exam.handle("node07", Examined(), NOW)
    assert kinds(exam.handle("node07", Reached(()), NOW)) == [("node07", Watch)]
    exam.fail("gpu1", Failure("probe", "it ended"))
    assert exam.handle("node07", Watching(None), NOW) == [("node07", Finish())]


def test_a_store_that_cannot_be_written_and_a_port_that_is_taken_are_not_tried() -> None:
    exam = two()
    begin(exam, "node07")
    begin(exam, "gpu1")
    exam.handle("gpu1", Folders(STORE.workdir, edited(STORE.store or STORE.workdir, error="full")), NOW)
    exam.handle("gpu1", Listening((), (), "", "taken"), NOW)
    exam.handle("gpu1", Examined(), NOW)
    assert kinds(exam.handle("node07", Examined(), NOW)) == [("node07", Finish)]


def test_messages_of_a_failed_host_are_ignored() -> None:
    exam = two()
    exam.fail("node07", Failure("answer", "silence"))
    assert exam.handle("node07", HELLO, NOW) == []
    assert exam.measurements["node07"].hello is None
    assert exam.fail("node07", Failure("ssh", "later")) == []
    failure = exam.measurements["node07"].failure
    assert failure is not None and failure.cause == "silence"


@pytest.mark.parametrize("examination", [None, "0", str(EXAMINATION + 1)])
def test_a_host_with_other_commands_reports_its_versions_alone(examination: str | None) -> None:
    exam = two()
    begin(exam, "gpu1")
    other = Handshake({"zmqrl": "9.9", "examination": examination}, 7, 1.0)
    assert exam.handle("node07", other, NOW) == []
    found = exam.measurements["node07"]
    assert exam.over == {"node07"} and found.failure is None
    assert found.hello is not None and found.hello.versions["zmqrl"] == "9.9"
