"""The host agent: the small process that starts and holds one host's processes."""
