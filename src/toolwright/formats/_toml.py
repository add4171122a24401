"""TOML as text: read within bounds, because the library's reader has none of its own.

Knows no format and no file; the rye format and the host's configuration read their TOML here.
"""

from __future__ import annotations

import tomllib
from typing import Final

from toolwright.jsontext import DEPTH_MAX, JsonObject

TOML_BYTES_MAX: Final = 100_000
_DOTS_MAX: Final = 1_000


def read(text: str) -> JsonObject:
    """The value of a TOML text. Raises ValueError with what is wrong, never anything else.

    Attack: brackets nested until the reader's stack is full, or keys of so many parts that it takes hours to
    put them together. Counting bounds both from above.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > TOML_BYTES_MAX:
        raise ValueError(f"it has {size:,} bytes, more than the {TOML_BYTES_MAX:,} a TOML file may have")
    if max(line.count(".") for line in text.split("\n")) > _DOTS_MAX or _nesting(text) > DEPTH_MAX:
        raise ValueError(f"nested more than {DEPTH_MAX} levels deep")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {DEPTH_MAX} levels deep") from None


def _nesting(text: str) -> int:
    if max(text.count("["), text.count("{")) <= DEPTH_MAX // 2:
        return 0  # too few to be too deep
    depth = deepest = 0
    for char in text:
        if char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest
