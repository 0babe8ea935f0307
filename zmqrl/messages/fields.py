"""Field types that messages of several links have: a value outside the bounds is refused where it is decoded."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from zmqrl.types import Finite, Whole

Index: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 16)]
"""Of a process among those of its role."""
Text: TypeAlias = Annotated[str, Meta(max_length=1 << 20)]
Large: TypeAlias = Annotated[str, Meta(max_length=1 << 30)]
"""An archive as base64."""
Number: TypeAlias = Whole | Finite
"""An integer stays one."""
Port: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 16)]
Ports: TypeAlias = tuple[Port, Port, Port]
