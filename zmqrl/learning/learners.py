"""Bases of learners under autograd: what each update receives, what is checked, and what a checkpoint holds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping

from zmqrl.acting.previous import previous_rows
from zmqrl.errors import ConfigError
from zmqrl.learning.base import LearnResult, OffPolicyLearner, OnPolicyLearner, Progress
from zmqrl.learning.intrinsic.base import ENV_REWARD
from zmqrl.learning.net_learner import PRIORITY, NetLearner
from zmqrl.loading import Tensor, np, torch
from zmqrl.ops.returns import sequence_priorities
from zmqrl.random_streams import stream
from zmqrl.replay.base import AnySample, Replay, SegmentBatch, SequenceSample
from zmqrl.replay.spec import Prioritised
from zmqrl.types import ACTING_STATE, PREVIOUS, Array


class ReplayLearner(NetLearner, OffPolicyLearner):
    """One sample of replay per update. The configuration has `batch_size`, and for transitions `gamma`."""

    def anneal(self, replay: Replay, progress: Progress) -> None:
        """Before the updates of a round: settings of replay that change over the run. Default: none."""
        del replay, progress

    def observe(self, batch: SegmentBatch) -> None:
        """For statistics; default: none."""
        del batch

    def update(self, replay: Replay, updates: int, progress: Progress) -> LearnResult:
        """Do `updates` updates. ConfigError when `PRIORITY` has another shape than it must have."""
        self.anneal(replay, progress)
        rates, results = self.learning_rates(progress), {}
        for number in range(progress.updates, progress.updates + updates):
            sample = self.sample(replay, number)
            batch = self.batch(sample, progress, number)
            if self.intrinsic is not None:
                batch = self.intrinsic.rewarded(batch)
            results = self.run(batch, rates, **self.variant(number))
            if PRIORITY in results:
                self._prioritise(replay, sample, results[PRIORITY].cpu().numpy())
        if self.intrinsic is not None:
            self.add_metrics(self.intrinsic.metrics(progress.updates))
        return self._result(updates, self.measured(results, progress.updates))

    def sample(self, replay: Replay, number: int) -> AnySample:
        """What update `number` trains on: transitions, or sequences if `Algorithm.replay` has a length."""
        spec, size = self.algorithm.replay(), self.config.batch_size
        if spec.length:
            return replay.sample_sequences(size, number)
        return replay.sample(size, spec.n_step, self.config.gamma, number)

    def batch(self, sample: AnySample, progress: Progress, number: int) -> dict[str, Tensor]:
        """What `train` receives: the sample's columns, `noise` and `numbers`. Observations are network inputs."""
        return self.tensors(sample) | self.draw_noise(number, len(sample.rows)) | self.scalars(progress)

    def _prioritise(self, replay: Replay, sample: AnySample, delta: Array) -> None:
        """Set the priorities; that of a sequence is a mixture of those of its rows (`Prioritised.max_share`)."""
        if isinstance(sample, SequenceSample):
            spec = self.algorithm.replay()
            _check_priority(delta, batch_size=len(sample.rows), length=spec.length)
            settings = spec.prioritised or Prioritised()
            delta = sequence_priorities(delta.T, sample.mask[-spec.length :], settings.max_share)
        else:
            _check_priority(delta, batch_size=len(sample.rows))
        replay.set_priorities(sample, delta)


def _check_priority(found: Array, **sizes: int) -> None:
    """ConfigError when the axes of `PRIORITY` do not have these sizes."""
    if found.shape != tuple(sizes.values()):
        what = f"must be [{', '.join(sizes)}], here {list(sizes.values())}"
        raise ConfigError(what, key=("PRIORITY",), value=str(list(found.shape)))


class BatchLearner(NetLearner, OnPolicyLearner):
    """Epochs of minibatches over one batch of segments."""

    @property
    def epochs(self) -> int:
        """Passes over a batch; default: `config.epochs`, else 1."""
        return int(getattr(self.config, "epochs", 1))

    @property
    def minibatch_size(self) -> int | None:
        """Rows per update, at most; default: `config.minibatch_size`, else the whole batch (None)."""
        size: int | None = getattr(self.config, "minibatch_size", None)
        return size

    @abstractmethod
    def prepare(self, batch: SegmentBatch, progress: Progress) -> Mapping[str, Tensor]:
        """What is trained on: every tensor `[B, ...]` with the same B, of which minibatches are drawn.

        `rows` selects the valid rows; `observations` makes the network's input of the column `obs`.
        """

    def rows(self, batch: SegmentBatch, *names: str, **columns: Array | Tensor) -> dict[str, Tensor]:
        """The valid rows `[B, ...]` of columns `[T, E, ...]`, for `prepare`.

        Args:
            batch: What `prepare` receives.
            names: Columns of `batch`; `obs` is the network's input of each row.
            columns: Further arrays or tensors by name.
        """
        valid = batch.columns["valid"]
        index = self.tensor(np.flatnonzero(valid))
        rows = {"obs": self.observations(batch.columns["obs"][:-1][valid])} if "obs" in names else {}
        given: dict[str, Array | Tensor] = {name: batch.columns[name] for name in names if name != "obs"}
        for name, column in (given | columns).items():
            if isinstance(column, torch.Tensor):
                flat = column.flatten(0, 1)
                rows[name] = flat if len(index) == len(flat) else flat.index_select(0, index)
            else:
                rows[name] = self.tensor(column[valid])
        return rows

    def previous(self, batch: SegmentBatch) -> Array:
        """Previous action and reward of each row and after the last, `[T + 1, E, P]`: `ActingSpec(previous=True)`.

        `batch` is what `prepare` receives, or a held one.
        """
        reward = ENV_REWARD if ENV_REWARD in batch.columns else "reward"
        first, *rows = (batch.columns[name] for name in (ACTING_STATE + PREVIOUS, "action", reward, "valid"))
        return previous_rows(self.algorithm.env.action, first[0], *rows)

    def is_done(self, results: Mapping[str, Tensor]) -> bool:
        """Whether the results of a minibatch end the training on this batch. Default: no."""
        del results
        return False

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        """Train on `batch`."""
        if self.intrinsic is not None:
            batch = self.intrinsic.learn(batch, self.observations, progress)
            self.add_metrics(self.intrinsic.metrics(progress.updates))
        with torch.no_grad():
            rows = self.prepare(batch, progress)
        return self.fit(rows, progress, self.epochs)

    def fit(self, rows: Mapping[str, Tensor], progress: Progress, epochs: int, **variant: bool) -> LearnResult:
        """Train on rows as `prepare` returns them. They are shuffled in each epoch and spread over the minibatches.

        `variant` are constants that `train` is called with, over those of `self.variant`. `progress.updates` is the
        number of the first update: it names the order of the rows and the noise.
        """
        size = len(next(iter(rows.values())))
        updates = 0
        metrics: list[dict[str, float]] = []
        for results in self._minibatches(rows, size, progress, epochs, variant):
            metrics.append(self.measured(results, progress.updates + updates))
            updates += 1
            if self.is_done(results):
                break
        last = metrics[-self._count(size) :]
        return self._result(
            updates, {name: float(np.mean([m[name] for m in last])) for name in last[0]} if last else {}
        )

    def _count(self, size: int) -> int:
        return 1 if self.minibatch_size is None else -(-size // self.minibatch_size)

    def _minibatches(
        self,
        rows: Mapping[str, Tensor],
        size: int,
        progress: Progress,
        epochs: int,
        variant: Mapping[str, bool],
    ) -> Iterator[dict[str, Tensor]]:
        scalars, rates = self.scalars(progress), self.learning_rates(progress)
        random, number = stream(self.context.seed, "shuffle", index=progress.updates), progress.updates
        for _ in range(epochs if size else 0):
            order = self.tensor(random.permutation(size))
            for part in torch.tensor_split(order, self._count(size)):
                minibatch = {name: column.index_select(0, part) for name, column in rows.items()}
                given = {**minibatch, **self.draw_noise(number, len(part)), **scalars}
                yield self.run(given, rates, **{**self.variant(number), **variant})
                number += 1
