"""What is refused of the functions that tell a type, before any kernel is compiled."""

from __future__ import annotations

from typing import Any

import pytest

from llmgen.backends.cpu.kernels.quants.scaled import scaled


def function(*args: object) -> Any:
    raise AssertionError("it is not called before a kernel is compiled")


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("q2_k", ()),
        ("q2_k", ("scale",)),
        ("q2_k", ("small_scales",)),
        ("iq4_xs", ("small_scales", "scale")),
        ("iq4_xs", ("scale",)),
    ],
)
def test_small_scales_come_with_the_bits_of_their_products(key: str, given: tuple[str, ...]) -> None:
    """A panel of products is made where the table says so, from scales that the type's functions write."""
    with pytest.raises(ValueError, match=f"{key}: product_bits, small_scales and scale come together"):
        scaled(key, function, function, **dict.fromkeys(given, function))
