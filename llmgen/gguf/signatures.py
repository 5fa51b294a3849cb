"""Guessing from its first bytes what a file that is not GGUF is."""

from __future__ import annotations

import re

from llmgen.errors import shown

HEAD_BYTES = 512
"""Bytes from the start of the file that :func:`looks_like` needs."""

_MAGIC = {
    b"PK\x03\x04": "a zip archive (a PyTorch checkpoint, perhaps)",
    b"PK\x05\x06": "an empty zip archive",
    b"\x1f\x8b": "a gzip archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"\xfd7zXZ\x00": "an xz archive",
    b"BZh": "a bzip2 archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!": "a rar archive",
    b"\x93NUMPY": "a numpy array",
    b"\x89HDF\r\n": "an HDF5 file",
    b"%PDF": "a PDF document",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x7fELF": "a program",
    b"MZ": "a Windows program",
    b"FUGG": "a big-endian GGUF file",
    # the older formats wrote their names as little-endian numbers
    b"lmgg": "an old GGML file, the format before GGUF",
    b"fmgg": "an old GGMF file, a format before GGUF",
    b"tjgg": "an old GGJT file, a format before GGUF",
    b"algg": "an old GGLA adapter, a format before GGUF",
}


def looks_like(head: bytes) -> str:
    """Say in a few words what ``head``, the first bytes of a file, looks like."""
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    if head[257:262] == b"ustar":
        return "a tar archive"
    if head[4:8] == b"TFL3":
        return "a TFLite model"
    if re.match(rb"\x80[\x02-\x05]", head):
        return "a Python pickle (a PyTorch checkpoint, perhaps)"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return "a safetensors file"
    if not head.strip(b"\x00"):
        return "nothing but zero bytes (a download that was only reserved, perhaps)"
    return _looks_like_text(head) or f"unknown data starting with the bytes {head[:8].hex(' ')}"


def _looks_like_text(head: bytes) -> str | None:
    """What kind of text ``head`` is, or None when it is not text."""
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer in place of the model ('git lfs pull' fetches it)"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    lower = text[:200].lower()
    if lower.startswith((b"<!doctype html", b"<html", b"<head")):
        return "a web page (a login or error page, perhaps)"
    if lower.startswith(b"<"):
        return "an XML or HTML page"
    if text[:1] in (b"{", b"[") and _is_text(head):
        return "JSON text"
    if _is_text(head):
        return f"text starting with {shown(head[:40])}"
    return None


def _is_text(head: bytes) -> bool:
    return all(byte >= 32 or byte in b"\t\n\r\f" for byte in head) and _is_utf8(head)


def _is_utf8(head: bytes) -> bool:
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3  # a character cut at the end of the head
    return True
