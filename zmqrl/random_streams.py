"""Counter-based random numbers: a stream is named, never carried along, so any process can draw the same.

Philox 4x64 (Salmon et al. 2011): the key is a hash of (seed, purpose, vector env), the upper half of the counter is
(index, incarnation). Two names never share numbers, and no state has to be saved.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from zmqrl.loading import np


@lru_cache(maxsize=4096)
def _key(seed: int, purpose: str, vector_env: int) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}/{purpose}/{vector_env}".encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def stream(seed: int, purpose: str, vector_env: int = 0, incarnation: int = 0, index: int = 0) -> np.random.Generator:
    """The generator of that name, at its beginning.

    `incarnation` is that of the vector env in async and 0 in the other modes.
    """
    key = np.array(_key(seed, purpose, vector_env), dtype=np.uint64)
    counter = np.array([0, 0, index, incarnation], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def episode_seed(seed: int, vector_env: int, slot: int, episode: int, incarnation: int = 0) -> int:
    """The seed, in [0, 2**31), with which env `slot` of a vector env is reset for its `episode`."""
    name = f"{seed}/episode/{vector_env}/{slot}/{episode}/{incarnation}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little") & 0x7FFFFFFF
