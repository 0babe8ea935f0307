"""zmqrl from Python; `zmqrl` exports what is public here (docs/python.md)."""
