"""Whose a run is, and the folders and URLs whose runs this user trusts: a private file with one prefix per line."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from zmqrl.config.paths import expanded
from zmqrl.errors import ConfigError
from zmqrl.wire.runtime_folder import make_private, read_own

UNMAPPED = (65_534, 4_294_967_294)
"""Owners that NFS, containers and FUSE show for one that they do not name: it may be any user."""
NOT_COMPARED = "cannot be compared"


def other_owner(run_dir: Path) -> str | None:
    """Why a run directory, its `config.json` or its `run.json` may not be of this user; None: all are of this user."""
    for path in (run_dir, run_dir / "config.json", run_dir / "run.json"):
        for look in (path.lstat, path.stat):  # who made a link chose what it leads to
            with suppress(FileNotFoundError):
                found = look()
                if found.st_uid in UNMAPPED:
                    return f"has an owner that {NOT_COMPARED} (uid {found.st_uid})"
                if found.st_uid != os.geteuid():
                    return f"is of another user (uid {found.st_uid})"
                if found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode):
                    return "can be changed by every user"
    return None


def keep_own(run_dir: Path) -> None:
    """Trust a run that this process has just made, where its file system shows another owner, as NFS with squash."""
    place = canonical(run_dir)
    if place is not None and (run_dir / "config.json").stat().st_uid != os.geteuid():
        with suppress(ConfigError):  # then its user is asked
            trust(place)


def canonical(place: str | Path) -> str | None:
    """A folder without links, or a URL, as they are stored and compared; None: it cannot be compared."""
    text = str(place)
    if "://" not in text:
        text = str(expanded(place).resolve())
        return text if text.isprintable() else None
    scheme, _, rest = text.rstrip("/").partition("://")
    host, *parts = rest.split("/")
    is_whole = bool(host or (scheme == "file" and parts))
    # Services read `%2e%2e` and a backslash as `..` and a slash.
    is_plain = text.isprintable() and not {*"%\\?#"} & {*text} and not {".", ".."} & {*parts}
    return "/".join([f"{scheme.lower()}:", "", host.lower(), *parts]) if is_plain and is_whole else None


def is_trusted(place: str | Path) -> bool:
    """Whether a prefix is that place or above it. Whole names are compared: `runs` is not above `runs-of-others`."""
    known = canonical(place)
    trusted = (prefix.rstrip("/").split("/") for prefix in prefixes())
    return known is not None and any(known.split("/")[: len(names)] == names for names in trusted)


def prefixes() -> list[str]:
    """The prefixes that are trusted. ConfigError: others can write to their file, or it cannot be read."""
    path = _file()
    try:
        return [line for line in read_own(path).decode().split("\n") if line]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; remove it, and trust again what you trust") from error


def trust(*places: str) -> None:
    """Add prefixes, from `canonical`. ConfigError: their file cannot be written."""
    path, known = _file(), prefixes()
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        make_private(path.parent)
        path.touch(mode=0o600)
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{place}\n" for place in places if place not in known))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def distrust(*places: str) -> None:
    """Remove prefixes. ConfigError: one is not trusted."""
    known = prefixes()
    unknown = [place for place in places if place not in known]
    if unknown:
        raise ConfigError.about(unknown[0], "is not a prefix that is trusted", "zmqrl trust --list prints them")
    _file().unlink()
    trust(*(prefix for prefix in known if prefix not in places))


def _file() -> Path:
    """File of the trusted prefixes, in the user's folder of configuration."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))  # to be ignored where it is not absolute
    return (folder if folder.is_absolute() else expanded("~/.config")) / "zmqrl" / "trusted"
