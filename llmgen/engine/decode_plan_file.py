"""How generated tokens read the cache, as it was measured, in the file of the plans (kv_plan_file.py).

An entry under "decode" has a key (a hash of what must be equal for it to hold), when it was last added to, and
for each bucket of context lengths the reading and the seconds of a step by the number of streams, or null.
A file that cannot be read is as good as none: the rule holds, and answers are the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmgen.engine.kv_plan_file import MOST_ENTRIES, changing, read_content, write_content
from llmgen.errors import LLMGenError
from llmgen.model.decode_config import MOST_TOGETHER, STREAMS, Measured, Reading

_log = logging.getLogger(__name__)


def decode_key(fingerprint: str, machine: str, kv_type: str, borders: Sequence[int]) -> str:
    """What must be equal for readings to hold."""
    return hashlib.sha256(json.dumps([fingerprint, machine, kv_type, *borders]).encode()).hexdigest()


def kept_readings(path: Path, key: str, n_buckets: int, interval: float) -> dict[int, Measured]:
    """The readings of that key by bucket, those that were measured within ``interval`` seconds."""
    try:
        entries = _entries(read_content(path))
    except LLMGenError as error:
        _log.debug("no measured decode plan: %s", error)
        return {}
    return _holding(entries, key, n_buckets, interval)


def _holding(entries: list[dict[str, Any]], key: str, n_buckets: int, interval: float) -> dict[int, Measured]:
    for entry in entries:
        found = _measured(entry, n_buckets) if entry.get("key") == key else None
        if found is not None and 0 <= time.time() - entry["measured"] < interval:
            return found
    return {}


def keep_readings(
    path: Path, key: str, measured: dict[int, Measured], n_buckets: int, interval: float = 0.0
) -> None:
    """Put readings into the file, beside those of other buckets that were measured within ``interval`` seconds.

    Raises LLMGenError if it cannot be written.
    """
    with changing(path):  # another program may have just added a bucket
        content = read_content(path)
        entries = _entries(content)
        found = {**_holding(entries, key, n_buckets, interval), **measured}
        buckets = [_as_dict(found.get(bucket)) for bucket in range(n_buckets)]
        others = [entry for entry in entries if entry.get("key") != key]
        entry = {"key": key, "measured": time.time(), "buckets": buckets}
        write_content(path, {**content, "decode": [entry, *others][:MOST_ENTRIES]})


def _entries(content: dict[str, Any]) -> list[dict[str, Any]]:
    entries = content.get("decode")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _as_dict(measured: Measured | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    seconds = {str(streams): seconds for streams, seconds in measured.seconds.items()}
    return {**vars(measured.reading), "seconds": seconds}


def _measured(entry: dict[str, Any], n_buckets: int) -> dict[int, Measured] | None:
    """The readings of an entry; None for one that is damaged."""
    try:
        buckets = entry["buckets"]
        if len(buckets) != n_buckets or not isinstance(entry["measured"], (int, float)):
            return None
        float(entry["measured"])  # an integer may be too large for one
        return {i: _reading(bucket) for i, bucket in enumerate(buckets) if bucket is not None}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _reading(bucket: dict[str, Any]) -> Measured:
    together, streams = bucket["together"], bucket["streams"]
    if type(together) is not int or not 1 <= together <= MOST_TOGETHER:
        raise ValueError
    if type(streams) is not int or streams not in STREAMS:
        raise ValueError
    seconds = {int(streams): float(seconds) for streams, seconds in bucket["seconds"].items()}
    if not all(0 < taken < math.inf for taken in seconds.values()):
        raise ValueError
    return Measured(Reading(together, streams), seconds)
