"""Which requests begin alike, so that one backend has their beginning in its cache (SPEC §5.4)."""

from __future__ import annotations

from zlib import crc32

from tidegate.classify import ParsedBody

BEGINNING = 2048
"""Bytes that must be the same. Less is soon computed again, and would send half of all work to one backend."""


def affinity_of(raw: bytes, body: ParsedBody) -> int:
    """Return a number that requests with the same beginning share, 0 for one that is too short.

    The beginning is that of the messages, or of the prompt where there are none. CRC-32 is the same in every process,
    so that all gateways choose the same backend; collisions only make two prompts neighbours.
    """
    messages = memoryview(body.messages)
    if len(messages):
        return crc32(messages[:BEGINNING]) if len(messages) >= BEGINNING else 0
    at = raw.find(b'"prompt"')
    start = raw[at : at + BEGINNING] if at >= 0 else b""
    return crc32(start) if len(start) == BEGINNING else 0
