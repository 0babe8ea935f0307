"""The evaluator process: scores the newest version on its own time and keeps the best. Training never waits for it."""

from __future__ import annotations

import os
import select
import signal
import time

from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.config.codec import from_json
from zmqrl.config.plan import Boot
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import DataStore
from zmqrl.data_stores.make import make_store
from zmqrl.errors import StoreError, WireError
from zmqrl.evaluator.evaluation import EpisodePlayer, Score
from zmqrl.evaluator.videos import Videos
from zmqrl.logs.events import EventPipe, Refusals
from zmqrl.messages.command import Evaluate
from zmqrl.messages.lines import evaluate
from zmqrl.messages.process import ProblemReport, Ready, VersionScore
from zmqrl.types import Version

STDIN = 0
WAIT_S = 0.5
READ_DEADLINE_S = 1.0
FINAL_READ_DEADLINE_S = 10.0


def main(boot: Boot) -> int:
    """Score versions until the final one is scored, stdin ends or SIGTERM. Exit code 0."""
    os.nice(boot.plan.config.evaluator.nice)
    events = EventPipe(boot.fds.get("events"))
    inbox = Inbox(STDIN, Refusals(events), boot.plan.config.limits.heartbeat_s)
    evaluator = Evaluator(boot, inbox, make_store(boot.plan), events)
    signal.signal(signal.SIGTERM, lambda *_: evaluator.stop())
    evaluator.run()
    return 0


class Inbox:
    """JSON lines on a descriptor; only the newest task counts, and a final one stays."""

    def __init__(self, fd: int, refusals: Refusals, report_every_s: float) -> None:
        """`refusals`: where invalid lines are counted; reported in polls, of which each env step has one."""
        self._fd, self._refusals, self._report_every_s = fd, refusals, report_every_s
        self._report_at_s = -float("inf")
        self._rest = b""
        self.newest: Evaluate | None = None
        self.ended = False

    def poll(self, timeout_s: float) -> None:
        """Read what is there; wait up to `timeout_s` for the first byte."""
        while not self.ended and select.select([self._fd], [], [], timeout_s)[0]:
            timeout_s = 0.0
            chunk = os.read(self._fd, 65536)
            if not chunk:
                self.ended = True
                break
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._take(line)
        now = time.monotonic()
        if now >= self._report_at_s:
            self.report()
            self._report_at_s = now + self._report_every_s

    def report(self) -> None:
        """Lines refused so far, if there are more than last time; at the end, whenever that is."""
        self._refusals.report()

    def _take(self, line: bytes) -> None:
        if not line.strip() or (self.newest is not None and self.newest.final):
            return
        try:
            self.newest = evaluate(line)
        except WireError as error:
            self._refusals.add(error.reason)


class Evaluator:
    """The loop. One thread; looks at its inbox between two env steps."""

    def __init__(self, boot: Boot, inbox: Inbox, store: DataStore, events: EventPipe) -> None:
        plan = boot.plan
        self._inbox, self._store, self._events = inbox, store, events
        self._policy = make_policy(from_json(ActingSpec, plan.acting))
        self._receives_numbers = plan.env.receives_numbers
        every = plan.config.evaluator.video_every
        self._videos = None if every is None else Videos(plan, every, events)
        self._evaluation = EpisodePlayer(
            plan.config.scored_env, plan.env, plan.config.evaluator.episodes, plan.config.run.seed
        )
        self._best_by = plan.config.evaluator.best_by
        best = store.best()
        self._best = best[2] if best is not None else -float("inf")
        self._stopping = False

    def stop(self) -> None:
        """End between two steps; safe in a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Until the final version is scored, the inbox ends or `stop`."""
        self._events.send(Ready())
        done: Evaluate | None = None
        while not self._stopping:
            self._inbox.poll(0.0 if self._inbox.newest != done else WAIT_S)
            if self._inbox.ended and not (self._inbox.newest is not None and self._inbox.newest.final):
                break
            task = self._inbox.newest
            if task is None or task == done:
                continue
            self._score(task)
            done = task
            if task.final:
                break
        self._inbox.report()
        self._evaluation.close()

    def _score(self, task: Evaluate) -> None:
        notice = task.notice
        deadline_s = FINAL_READ_DEADLINE_S if task.final else READ_DEADLINE_S
        try:
            content = self._store.read(notice.key, notice.nbytes, notice.sha256, deadline_s)
        except StoreError as error:
            if task.final:
                self._events.send(ProblemReport(str(error), "the final version is not scored"))
            return  # else retention was faster: a newer version has long been announced
        self._policy.load(tensors.parse(content)[0], notice.schedule)
        self._policy.numbers = notice.schedule if self._receives_numbers else None
        score = self._evaluation.play(self._policy, lambda: self._abandons(task))
        if score is None:
            return
        self._report(task, content, score)
        if self._videos is not None and not task.final:
            self._videos.add(self._policy, notice, lambda: self._abandons(task))

    def _abandons(self, task: Evaluate) -> bool:
        """Whether something more pressing has come: the end, or the final version."""
        self._inbox.poll(0.0)
        if self._stopping:
            return True
        newest = self._inbox.newest
        return not task.final and (self._inbox.ended or (newest is not None and newest.final))

    def _keep(self, version: Version, content: bytes, score: float) -> bool:
        """Whether it could be saved as the best; if not, the one before stays."""
        try:
            self._store.save_best(version, content, score)
        except StoreError as error:
            self._events.send(ProblemReport(str(error), "the previous best version is kept"))
            return False
        self._best = score
        return True

    def _report(self, task: Evaluate, content: bytes, score: Score) -> None:
        notice, by = task.notice, self._best_by
        value = score.mean if by is None else score.reports.get(by, -float("inf"))
        best = value > self._best and self._keep(notice.version, content, value)
        report = VersionScore(
            version=notice.version,
            env_steps=notice.env_steps,
            return_mean=score.mean,
            return_std=score.std,
            episodes=len(score.returns),
            wall=time.time(),
            best=best,
            final=task.final,
            updates=notice.updates,
            reports=score.reports,
        )
        self._events.send(report)
