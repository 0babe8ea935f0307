"""The key that was meant, where one was written that the configuration lacks."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zmqrl.config.aliases import KEYS, NO_KEYS, alias

MOST_SHOWN = 3
LOCAL = "hosts.local."


@dataclass(frozen=True)
class KnownKeys:
    """The dotted keys of a configuration."""

    keys: tuple[str, ...]
    kind: str | None = None
    """The algorithm whose keys are among them."""

    def of_another_library(self, name: str) -> str | None:
        """What zmqrl has for a name of another library, as the end of a sentence about that name."""
        name = alias(name)
        if name in NO_KEYS:
            return NO_KEYS[name]
        if name not in KEYS:
            return None
        candidates, note = KEYS[name]
        found = self._counterpart(name)
        if found is None:
            owner = f"algorithm {self.kind} does" if self.kind else "this algorithm does"
            return f"in zmqrl it is {' or '.join(candidates)}, which {owner} not have"
        return f"in zmqrl it is {found}{f' ({note})' if note else ''}"

    def _counterpart(self, name: str) -> str | None:
        candidates = KEYS.get(alias(name), ((), ""))[0]
        return next((key for key in candidates if key in self.keys or key.startswith(LOCAL)), None)

    def elsewhere(self, name: str) -> str | None:
        """Keys of other sections whose last part is `name`."""
        found = [key for key in self.keys if key.rpartition(".")[2] == alias(name)]
        return f"did you mean {_listed(found)}?" if 0 < len(found) <= MOST_SHOWN else None

    def similar(self, name: str) -> str | None:
        """The key of any section whose last part is spelled most alike."""
        near = difflib.get_close_matches(alias(name), [key.rpartition(".")[2] for key in self.keys], n=1, cutoff=0.85)
        return self.elsewhere(near[0]) if near else None

    def hint(self, path: Sequence[str], inner: Iterable[str], known: Sequence[str]) -> str:
        """How to correct the unknown key at `path`.

        Args:
            path: The parts of the key.
            inner: The keys of the section that was written there.
            known: The keys that its section has.
        """
        name = path[-1]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        spelling = f"did you mean {near[0]!r}?" if near else None
        is_plural = bool(near) and name in (f"{near[0]}s", near[0].removesuffix("s"))
        nested = next((f"{part}: {found}" for part in inner if (found := self.of_another_library(part))), None)
        translated = self.of_another_library(name)
        has_key = translated is not None and (alias(name) in NO_KEYS or self._counterpart(name) is not None)
        return (
            (translated if has_key else None)
            or nested
            or (spelling if is_plural else None)
            or self.elsewhere(name)
            or spelling
            or translated  # a key that another algorithm has
            or self.similar(name)
            or f"known keys of {'.'.join(path[:-1]) or 'the configuration'}: {', '.join(known)}"
        )


def _listed(keys: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(keys[:-1]), keys[-1])))
