"""First values of tensors, drawn in numpy."""

from __future__ import annotations

import math

from zmqrl.loading import np
from zmqrl.types import Array


def draw(generator: np.random.Generator, shape: tuple[int, ...], fan_in: int, gain: float) -> Array:
    """A weight (two or more dimensions) or a bias (one), float32.

    Orthogonal with `gain` and bias 0 (Saxe et al. 2014), or, with gain 0, uniform within +-1/sqrt(fan_in) for weight
    and bias (PyTorch's default).
    """
    if gain == 0.0:
        bound = 1.0 / math.sqrt(fan_in)
        return generator.uniform(-bound, bound, shape).astype(np.float32)
    if len(shape) == 1:
        return np.zeros(shape, dtype=np.float32)
    return orthogonal(generator, shape, gain)


def orthogonal(generator: np.random.Generator, shape: tuple[int, ...], gain: float) -> Array:
    """Rows (or columns, whichever are fewer) of `[outputs, rest]` orthonormal, times `gain`; float32."""
    rows, columns = shape[0], math.prod(shape[1:])
    q, r = np.linalg.qr(generator.standard_normal((max(rows, columns), min(rows, columns))))
    # QR leaves the signs open; fixing the diagonal of R makes q uniform over the orthogonal group (Mezzadri 2007).
    q = q * np.sign(np.diag(r))
    return np.ascontiguousarray((q if rows >= columns else q.T).reshape(shape) * gain, dtype=np.float32)
