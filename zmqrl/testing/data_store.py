"""What a `DataStore` promises. A maker opens the store at one place, which is empty before a check."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from zmqrl.config.plan import Lineage
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import DataStore, Full, Saved
from zmqrl.errors import StoreError
from zmqrl.testing.expect import assert_within, checks_of, is_frozen_config, raises
from zmqrl.types import Version

KEEP = 3
"""The `keep` with which a maker opens the store."""
RETIRED_WITHIN_S = 10.0
"""A store may keep a superseded version for its readers, and no longer than this."""
READ_S = 5.0
WEIGHTS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "mean": np.array([1.5]), "n": np.array(3)}

StoreMaker: TypeAlias = Callable[[], DataStore]
"""Each call opens the same place, as another process of the run does; `keep` is `KEEP`."""


def config_is_a_frozen_dataclass(make: StoreMaker) -> None:
    """The keys of hosts.yaml are validated against `Config`, and no process changes them."""
    is_frozen_config(type(make()).Config)


def an_empty_store_has_nothing(make: StoreMaker) -> None:
    """Every reading method of a place without checkpoints returns None, or raises StoreError with the key."""
    store = make()
    assert store.newest() is None
    assert store.newest_full() is None
    assert store.best() is None
    assert store.owner() is None
    assert not store.passed_over()
    assert not store.damaged()
    error = raises(StoreError, lambda: store.read("v0-0.safetensors", 3, "0" * 64, 0.01))
    assert "v0-0" in str(error), f"the message does not name the key: {error}"


def weights_return_bit_for_bit(make: StoreMaker) -> None:
    """`read` returns the bytes that `save` counted and digested, as safetensors; also to another process."""
    saved = make().save(Version(1, 2), WEIGHTS, {"env_steps": "7"})
    content = _read(make(), saved)
    assert len(content) == saved.nbytes
    assert hashlib.sha256(content).hexdigest() == saved.sha256
    arrays, metadata = tensors.parse(content)
    assert metadata == {"env_steps": "7"}
    assert arrays.keys() == WEIGHTS.keys()
    for name, array in WEIGHTS.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape), name
        assert arrays[name].tobytes() == array.tobytes(), name


def a_wrong_digest_is_never_returned(make: StoreMaker) -> None:
    """`read` verifies size and sha256 of the notice, and raises StoreError at its deadline."""
    store = make()
    saved = store.save(Version(1, 2), WEIGHTS, {})
    raises(StoreError, lambda: store.read(saved.key, saved.nbytes, "0" * 64, 0.02))
    raises(StoreError, lambda: store.read(saved.key, saved.nbytes + 1, saved.sha256, 0.02))


def a_read_ends_at_its_deadline(make: StoreMaker) -> None:
    """`read` of a version that does not exist raises StoreError, a short time after `deadline_s` at the latest."""
    begun = time.monotonic()
    raises(StoreError, lambda: make().read("v0-7.safetensors", 3, "0" * 64, 0.2))
    assert_within(time.monotonic() - begun, READ_S, "read with deadline_s=0.2")


def a_foreign_key_is_a_store_error(make: StoreMaker) -> None:
    """A key comes from a message: one that `save` never returned is refused, and reads nothing outside the place."""
    store = make()
    store.save(Version(0, 0), WEIGHTS, {})
    for key in ("../secret", "/etc/passwd", "", "v0-0.safetensors/x", "a" * 300):
        raises(StoreError, lambda key=key: store.read(key, 3, "0" * 64, 0.01))  # type: ignore[misc]


def newest_is_by_incarnation_then_n(make: StoreMaker) -> None:
    """`newest` compares versions, whatever the order of their writing and the text of their names."""
    writer = make()
    for version, newest in (((0, 10), (0, 10)), ((0, 9), (0, 10)), ((1, 2), (1, 2)), ((0, 11), (1, 2))):
        writer.save(Version(*version), {"v": np.array(version)}, {})
        for store in (writer, make()):
            found = store.newest()
            assert found is not None
            assert found[0] == Version(*newest)
            assert tensors.parse(found[1])[0]["v"].tolist() == list(newest)


def a_full_checkpoint_returns_with_its_plain_data(make: StoreMaker) -> None:
    """`newest_full` returns arrays and JSON data of the newest `save_full`, durable or not, after any retention."""
    writer = make()
    for n in range(4):
        full = Full(Version(0, n), {"n": np.array(n)}, {"counters": {"n": n, "solved": None}})
        nbytes = writer.save_full(full, durable=n == 3)
        assert nbytes > 0, "save_full returns the bytes that it wrote"
        writer.retire()
    writer.sync_full(Version(0, 3))
    for store in (writer, make()):
        found = store.newest_full()
        assert found is not None
        assert found.version == Version(0, 3)
        assert found.meta == {"counters": {"n": 3, "solved": None}}
        assert found.arrays["n"] == 3


def rows_of_a_full_checkpoint_are_among_its_arrays(make: StoreMaker) -> None:
    """`Full.rows` are arrays that are written from where they are; `newest_full` returns them by name."""
    held = np.arange(12, dtype=np.int64).reshape(4, 3)
    make().save_full(Full(Version(0, 1), {}, {}, rows={"replay/obs": tensors.Rows(held, (2, 0))}), durable=True)
    found = make().newest_full()
    assert found is not None
    assert found.arrays["replay/obs"].tolist() == held[[2, 0]].tolist()


def the_best_version_is_one(make: StoreMaker) -> None:
    """`best` returns content and score of the last `save_best`, bit for bit."""
    writer = make()
    for n, score in ((1, 10.0), (2, 0.1 + 0.2)):
        saved = writer.save(Version(0, n), {"n": np.array(n)}, {})
        writer.save_best(Version(0, n), _read(writer, saved), score)
    for store in (writer, make()):
        found = store.best()
        assert found is not None
        assert (found[0], found[2]) == (Version(0, 2), 0.1 + 0.2)
        assert tensors.parse(found[1])[0]["n"] == 2


def retention_keeps_the_newest(make: StoreMaker) -> None:
    """`retire` keeps the newest `keep` versions, best and the newest FULL, and deletes the other versions in time."""
    store = make()
    saved = [store.save(Version(0, n), WEIGHTS, {}) for n in range(2 * KEEP)]
    store.save_full(Full(Version(0, 0), {"n": np.array(0)}, {}), durable=True)
    store.save_best(Version(0, 0), _read(store, saved[0]), 1.0)
    until = time.monotonic() + RETIRED_WITHIN_S
    while any(_is_there(store, old) for old in saved[:KEEP]):
        assert time.monotonic() < until, f"superseded versions are there {RETIRED_WITHIN_S:g} s after the newest"
        store.retire()
        time.sleep(0.05)
    for kept in saved[KEEP:]:
        _read(store, kept)
    assert store.best() is not None, "retention deleted the best version"
    assert store.newest_full() is not None, "retention deleted the only FULL"


def kept_versions_stay(make: StoreMaker) -> None:
    """What `keep` wrote stays after `retire` and `finish`, and `weights_of` returns it. For kinds with `keep`."""
    writer = make()
    if type(writer).keep is DataStore.keep:
        return
    for n in range(3 * KEEP):
        writer.save(Version(0, n), WEIGHTS, {})
        if n == 1:
            writer.keep(Version(0, n), WEIGHTS, {"env_steps": "7"})
        writer.retire()
    writer.finish()
    for store in (writer, make()):
        newest, content = store.newest_kept(), store.weights_of(Version(0, 1))
        assert newest is not None
        assert content == newest, "weights_of returns other bytes than newest_kept"
        arrays, metadata = tensors.parse(content)
        assert metadata["env_steps"] == "7"
        assert arrays["a.weight"].tobytes() == WEIGHTS["a.weight"].tobytes()
        assert {Version(0, 1), Version(0, 3 * KEEP - 1)} <= set(store.versions())
        assert store.weights_of(Version(7, 7)) is None


def finish_leaves_what_a_resume_needs(make: StoreMaker) -> None:
    """After `finish` of the writer, another process finds the newest version, the newest FULL and the best."""
    writer = make()
    saved = [writer.save(Version(0, n), WEIGHTS, {}) for n in range(2 * KEEP)][-1]
    writer.save_full(Full(Version(0, 5), {"n": np.array(5)}, {}), durable=True)
    writer.save_best(Version(0, 5), _read(writer, saved), 3.0)
    writer.finish()
    store = make()
    newest, full, best = store.newest(), store.newest_full(), store.best()
    assert newest is not None
    assert full is not None
    assert best is not None
    assert newest[0] == full.version == best[0] == Version(0, 5)


def a_reader_never_sees_a_part(make: StoreMaker) -> None:
    """While the writer saves, `newest` of a reader returns verified content, and versions never decrease."""
    writer, reader, versions = make(), make(), 30
    seen: list[Version] = []
    failed: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                found = reader.newest()
                if found is not None:
                    assert tensors.parse(found[1])[0]["n"].tolist() == [found[0].n] * 1000
                    seen.append(found[0])
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the check
            failed.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        for n in range(versions):
            writer.save(Version(0, n), {"n": np.full(1000, n)}, {})
            writer.retire()
    finally:
        done.set()
        thread.join(READ_S)
    assert not thread.is_alive(), "newest() does not return"
    if failed:
        raise failed[0]
    assert seen == sorted(seen)


def a_token_is_seen_until_it_is_removed(make: StoreMaker) -> None:
    """Other hosts compare the token, or `leave_token` returns None because every host sees the same place."""
    writer, reader = make(), make()
    token = writer.leave_token("run-1")
    if token is not None:
        assert reader.sees_token("run-1", token)
        assert not reader.sees_token("run-1", "another")
        assert not reader.sees_token("run-2", token)
        writer.remove_token("run-1")
        assert not reader.sees_token("run-1", token)
    writer.remove_token("run-1")
    assert reader.newest() is None, "a token is listed as a version"


def an_owner_returns_or_is_never_recorded(make: StoreMaker) -> None:
    """`owner` returns the last `set_owner`, or always None where the place alone keeps lineages apart."""
    store = make()
    for attempt in (1, 2):
        owner = Lineage("run-1", attempt, "here", "/runs/a")
        store.set_owner(owner)
        assert store.owner() in (None, owner)


def what_is_put_aside_returns(make: StoreMaker) -> None:
    """`put_aside` moves every checkpoint out of sight, `put_back` restores all; or StoreError, and nothing moves."""
    store = make()
    assert store.put_aside("none-yet") is None
    saved = store.save(Version(0, 1), WEIGHTS, {})
    store.save_full(Full(Version(0, 1), {"n": np.array(1)}, {}), durable=True)
    store.save_best(Version(0, 1), _read(store, saved), 2.0)
    try:
        moved = store.put_aside("before")
    except StoreError:
        moved = None
    else:
        assert moved is not None, "put_aside returns the place of what it moved"
        assert (store.newest(), store.newest_full(), store.best()) == (None, None, None)
        store.put_back("before")
        store.put_back("before")
    best, full = make().best(), make().newest_full()
    assert best is not None
    assert full is not None
    assert best[0] == full.version == Version(0, 1)
    _read(store, saved)


def _read(store: DataStore, saved: Saved) -> bytes:
    return store.read(saved.key, saved.nbytes, saved.sha256, READ_S)


def _is_there(store: DataStore, saved: Saved) -> bool:
    try:
        store.read(saved.key, saved.nbytes, saved.sha256, 0.0)
    except StoreError:
        return False
    return True


DATA_STORE = checks_of(__name__)
