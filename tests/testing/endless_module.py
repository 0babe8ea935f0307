"""A module whose import does not end."""

while True:
    pass
