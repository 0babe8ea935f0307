"""Several hosts on this machine, each with its own sshd, for tests of what spans hosts.

    with Lab(3) as lab:
        lab.hosts[1].hosts_yaml()          # what hosts.yaml says about it
        lab.run_here([sys.executable, "-m", "zmqrl", "launch", ...])   # a process on the laptop: beside hosts[0]
        lab.hosts[2].crash()

Needs openssh-server and, for hosts with a network, processes and /tmp of their own, root, iproute2
and nftables (`bin/lab-setup`). Without those the hosts are sshds on loopback ports: `lab.isolated` is False.
A lab of any kind ends with the process that made it, also when that is killed. In pytest: `with lab_or_skip(3) as lab`.
"""

from __future__ import annotations

from .host import Host, Process
from .lab import Lab, LabUnavailable
from .skipping import lab_or_skip

__all__ = ["Host", "Lab", "LabUnavailable", "Process", "lab_or_skip"]
