"""As many research repositories do, the module parses the arguments of the process when it is imported."""

import argparse

from odd import Odd as Env  # noqa: F401

parser = argparse.ArgumentParser()
parser.add_argument("--render", action="store_true")
args = parser.parse_args()
