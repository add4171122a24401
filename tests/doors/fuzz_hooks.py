"""Loaded by schemathesis: half of the good requests about a tool, a call or an approval name one there is."""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

import schemathesis
from schemathesis import GenerationMode

KNOWN: dict[str, list[str]] = json.loads(os.environ["FUZZ_KNOWN"])


@schemathesis.hook
def map_case(context: Any, case: Any) -> Any:
    given = case.path_parameters
    if not given or case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return case
    for name, value in given.items():
        number = zlib.crc32(repr((value, case.body)).encode("utf-8", "backslashreplace"))
        known = KNOWN.get(name)
        if known and number % 4:
            given[name] = known[number // 4 % len(known)]
    return case
