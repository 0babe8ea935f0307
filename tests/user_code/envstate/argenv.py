import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--render", action="store_true")
args = parser.parse_args()  # as many research repositories do, at the top of the module
