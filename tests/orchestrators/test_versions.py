"""What two hosts must agree on, and what is only said."""

from __future__ import annotations

import pytest

from zmqrl.orchestrators.handshake import processor_refusal, refusals, versions, warnings

HERE = {
    "zmqrl": "1.2.0",
    "protocol": "1",
    "byteorder": "little",
    "python": "3.11.4",
    "numpy": "2.1.0",
    "torch": "2.13.0",
    "pyzmq": "27.0.1",
    "msgpack": "1.1.0",
    "msgspec": "0.22.0",
    "gymnasium": "1.2.3",
}


@pytest.mark.parametrize(
    ("name", "there"), [("zmqrl", "1.2.1"), ("protocol", "2"), ("byteorder", "big"), ("zmqrl", None)]
)
def test_refused(name: str, there: str | None) -> None:
    assert refusals(HERE, {**HERE, name: there}) == [f"{name} {there or 'none'} there, {HERE[name]} here"]


@pytest.mark.parametrize(("name", "there", "expected"), [
    ("numpy", "2.9.0", False), ("numpy", "1.26.4", True), ("python", "3.11.9", False), ("python", "3.12.0", True),
    ("gymnasium", "1.3.0", True), ("torch", None, True),
])  # fmt: skip
def test_said(name: str, there: str | None, expected: bool) -> None:
    far = {**HERE, name: there}
    assert refusals(HERE, far) == []
    assert warnings(HERE, far) == ([f"{name} {there or 'none'} there, {HERE[name]} here"] if expected else [])


def test_a_host_agrees_with_itself() -> None:
    assert refusals(versions(), versions()) == warnings(versions(), versions()) == []


def test_a_processor_that_may_reorder_stores_shares_no_memory() -> None:
    expected = processor_refusal("aarch64", "sync")
    assert expected is not None and "aarch64" in expected and "x86-64" in expected and "single" in expected
    assert processor_refusal("riscv64", "async") is not None
    assert processor_refusal("aarch64", "single") is None
    assert processor_refusal("x86_64", "sync") is processor_refusal("AMD64", "async") is None
