"""The key that was meant, where one was written that the configuration lacks."""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from zmqrl.config.foreign.aliases import IN_A_SECTION, KEYS, NO_KEYS, OF_EVALUATOR, alias

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
            return f"in zmqrl it is {' or '.join(candidates)}, which {self._owner()} not have"
        return f"in zmqrl it is {found}{f' ({note})' if note else ''}"

    def _owner(self) -> str:
        return f"algorithm {self.kind} does" if self.kind else "this algorithm does"

    def _has(self, name: str, sections: Container[str] = ()) -> bool:
        """Whether zmqrl has something for a name of another library, which is not the name of a section."""
        return name not in sections and (alias(name) in NO_KEYS or self._counterpart(name) is not None)

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

        `inner`: the keys of the section that was written there. `known`: the keys that its section has.
        """
        name, section = path[-1], ".".join(path[:-1])
        known_keys = f"known keys of {section or 'the configuration'}: {', '.join(known)}"
        if section == "evaluator" and alias(name) in OF_EVALUATOR:
            return OF_EVALUATOR[alias(name)]
        sections = {key.partition(".")[0] for key in self.keys}
        nested = next((f"{part}: {self.of_another_library(part)}" for part in inner if self._has(part, sections)), None)
        translated = self.of_another_library(name)
        if not self._has(name) and ".".join(path) in KEYS.get(alias(name), ((), ""))[0]:
            return f"{self._owner()} not have it; {known_keys}"
        if section and name in IN_A_SECTION:
            meant = next((f"did you mean {key!r}?" for key in IN_A_SECTION[name] if key in known), known_keys)
            return nested or meant
        return (
            (translated if self._has(name) else None)
            or nested
            or _alike(name, known)
            or self.elsewhere(name)
            or _less_alike(name, known)
            or translated  # a key that another algorithm has
            or self.similar(name)
            or known_keys
        )


def _alike(name: str, known: Sequence[str]) -> str | None:
    """The key of the section that is spelled almost alike, or the only one that begins with `name`."""
    found = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.8)
    found = found or [key for key in known if key.startswith(f"{name.removesuffix('s')}_")]
    return f"did you mean {found[0]!r}?" if len(found) == 1 else None


def _less_alike(name: str, known: Sequence[str]) -> str | None:
    found = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    found = found or difflib.get_close_matches(name, [key for key in known if key in name or name in key], n=1)
    return f"did you mean {found[0]!r}?" if found else None


def _listed(keys: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(keys[:-1]), keys[-1])))
