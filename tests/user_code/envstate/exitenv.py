import sys

if True:
    sys.exit(0)  # "no display found, bye"
