"""The place of the queue drill: hosts of a lab, users with real uids, and a file system for the queue and the homes."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from tests.lab import Host, Lab
from tests.lab.host import ROOT
from tests.support.waiting import WAIT_S

FIRST_UID = 7_101
IMAGE_BYTES = 4 << 30


class User:
    """An account of this machine, which the hosts of the lab have too. It works on the first host."""

    def __init__(self, number: int, home: Path, lab: Lab) -> None:
        self.uid, self.name, self.home, self._lab = FIRST_UID + number, f"zmqrl-drill-{number}", home, lab
        with contextlib.suppress(KeyError):
            pwd.getpwnam(self.name)
            self.remove()
        words = ["--uid", str(self.uid), "--home-dir", str(home), "--no-create-home", "--password", "*", self.name]
        run("useradd", "--shell", "/bin/sh", *words)
        self._make_home()
        self.runner: subprocess.Popen[bytes] | None = None

    def _make_home(self) -> None:
        """Logins to the hosts are those of this lab."""
        ssh, lab = self.home / ".ssh", self._lab
        shutil.rmtree(ssh, ignore_errors=True)
        ssh.mkdir(parents=True)
        shutil.copy(lab.identity, ssh / "id")
        shutil.copy(lab.known_hosts, ssh / "known_hosts")
        own = {"user": self.name, "identity": str(ssh / "id"), "workdir": str(self.home / "zmqrl")}
        hosts = {"local": {}, **{host.name: host.hosts_yaml(**own) for host in lab.hosts[1:]}}
        content = {"hosts": {name: {**section, "capacity": {"cores": 1}} for name, section in hosts.items()}}
        (self.home / "hosts.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        run("chown", "-R", f"{self.uid}:{self.uid}", str(self.home))
        ssh.chmod(0o700)
        (ssh / "id").chmod(0o600)

    def command(self, *words: str) -> list[str]:
        """The command line of `zmqrl` on the first host."""
        variables = {"HOME": self.home, "USER": self.name, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": 1, "TMPDIR": "/tmp"}
        account = [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        settings = [f"PATH={os.environ['PATH']}", *(f"{key}={value}" for key, value in variables.items())]
        zmqrl = ["env", "-i", f"--chdir={self.home}", *settings, sys.executable, "-m", "zmqrl", *words]
        return self._lab.hosts[0].command(["setpriv", *account, *zmqrl])

    def zmqrl(self, *words: str) -> str:
        """Output of a command that succeeds."""
        return run(*self.command(*words), timeout_s=600.0)

    def keep_runner(self, queue: Path) -> None:
        """Start a runner unless there is one."""
        if self.runner is None or self.runner.poll() is not None:
            with (self.home / "runner.log").open("ab") as log:
                words = self.command("queue", "run", "hosts.yaml", "--queue", str(queue))
                self.runner = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def end_runner(self) -> None:
        """End it, and its runs."""
        if self.runner is not None:
            for process in self._lab.hosts[0].processes("queue run"):
                if uid_of(process.pid) == self.uid:
                    os.kill(process.pid, signal.SIGTERM)
            self.runner.wait(WAIT_S)

    def remove(self) -> None:
        """Remove the account."""
        run("userdel", self.name)


class Storage:
    """A file system in `folder/fs` that can stand still: what is written waits until it goes on."""

    def __init__(self, folder: Path) -> None:
        self.path, self._image = folder / "fs", folder / "image"
        self.path.mkdir(parents=True, exist_ok=True)
        self.can_stop, self._outage = True, subprocess.Popen(["true"])
        try:
            if not self._image.exists():
                with self._image.open("wb") as file:
                    file.truncate(IMAGE_BYTES)
                run("mkfs.ext4", "-q", str(self._image))
            if not self.path.is_mount():  # a drill that was killed leaves it
                run("mount", "-o", "loop,noatime", str(self._image), str(self.path))
        except (OSError, RuntimeError) as error:
            self.can_stop = False
            print(f"no outage of the file system here: {error}")

    def stop(self, seconds: float) -> None:
        """Begin an outage. Another process ends it: this one may wait for the file system too."""
        run("fsfreeze", "--freeze", str(self.path))
        go_on = f"sleep {seconds}; fsfreeze --unfreeze '{self.path}'"
        self._outage = subprocess.Popen(["sh", "-c", go_on], start_new_session=True)

    @property
    def is_stopped(self) -> bool:
        """Whether there is an outage now."""
        return self._outage.poll() is None

    def close(self) -> None:
        """Unmount it; the image stays. A lab that began meanwhile has the mount until its end."""
        self._outage.wait(WAIT_S)
        if self.can_stop:
            run("umount", "--lazy", str(self.path))


@contextlib.contextmanager
def site(folder: Path, hosts: int, users: int) -> Iterator[tuple[Lab, Storage, list[User]]]:
    """Accounts and hosts end with it; jobs, runs and homes stay in `folder`."""
    storage = Storage(folder)
    with contextlib.closing(storage), Lab(hosts, isolated=True) as lab:
        (lab.folder / "keys").chmod(0o711)  # sshd reads the public key as the user who logs in
        queue, made = storage.path / "queue", list[User]()
        queue.mkdir(exist_ok=True)
        queue.chmod(0o1777)
        try:
            for number in range(users):
                made.append(User(number, storage.path / f"home-{number}", lab))
            yield lab, storage, made
        finally:
            for user in made:
                user.end_runner()
            for host in lab.hosts:
                host.close()
            for user in made:
                user.remove()


def uid_of(pid: int) -> int | None:
    """The user of a process; None: it has ended."""
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}").st_uid
    return None


def victims(hosts: Sequence[Host], kind: str) -> list[int]:
    """Pids of the processes of a kind: runners, launchers, or agents."""
    text = {"runner": "queue run", "launcher": "--until-eof", "agent": "zmqrl.entry zmqrl.agent"}[kind]
    return [p.pid for host in hosts for p in host.processes(text) if os.path.basename(p.argv[0]).startswith("python")]


def run(*argv: str, timeout_s: float = WAIT_S) -> str:
    """Output of a command. RuntimeError: it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout
