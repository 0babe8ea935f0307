"""`python -m zmqrl` is the `zmqrl` command."""

from __future__ import annotations

from zmqrl.cli.main import main

if __name__ == "__main__":
    main()
