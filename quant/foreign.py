"""What a file is that is no model, by its first bytes: for errors that say more than that it cannot be read.

Most are what a download left (a pointer of Git LFS, a web page), or weights in a format of another program.
"""

from __future__ import annotations

import re
from collections.abc import Callable

HEAD_BYTES = 512  # of a file, which are enough for `foreign_kind`

_PICKLED = "which are not read, because they can run code: convert it to safetensors"
_PACKED = "unpack it first"
_POINTER = "a Git LFS pointer in place of the file: `git lfs pull` fetches it"
_STARTS = (  # the first bytes of a file, and what it is
    (b"version https://git-lfs.github.com/spec", _POINTER),
    (b"version https://hawser.github.com/spec", _POINTER),
    (b"GGUF", "a GGUF file: give it by itself, named ….gguf"),
    (b"PK\x03\x04", f"a ZIP archive, such as PyTorch's pickled weights, {_PICKLED}"),
    (b"lmgg", "a GGML file, the predecessor of GGUF: convert the original model again"),
    (b"fmgg", "a GGML file, the predecessor of GGUF: convert the original model again"),
    (b"tjgg", "a GGML file, the predecessor of GGUF: convert the original model again"),
    (b"algg", "a LoRA adapter in the format of GGML: convert the original adapter again"),
    (b"\x1f\x8b", f"packed with gzip: {_PACKED}"),
    (b"\x28\xb5\x2f\xfd", f"packed with Zstandard: {_PACKED}"),
    (b"\xfd7zXZ\0", f"packed with xz: {_PACKED}"),
    (b"BZh", f"packed with bzip2: {_PACKED}"),
    (b"7z\xbc\xaf\x27\x1c", f"a 7z archive: {_PACKED}"),
    (b"Rar!", f"a RAR archive: {_PACKED}"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras and TensorFlow write weights: convert it to safetensors"),
    (b"\x93NUMPY", "a NumPy array: convert it to safetensors"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "a picture (PNG)"),
    (b"\xff\xd8\xff", "a picture (JPEG)"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
)  # fmt: skip
_HTML = re.compile(rb"<!doctype html|<html|<head|<body|<\?xml|<error>", re.IGNORECASE)
_MESSAGES = (
    b"Entry not found",
    b"Repository not found",
    b"Invalid username or password",
    b"Not Found",
    b"404",
)


def foreign_kind(head: bytes, expected: str) -> str:
    """What a file is that begins with the bytes `head`, with what to do about it.

    "" if that is not known, or if it is what was `expected` ("GGUF", "safetensors" or "JSON").
    """
    known = (kind for start, kind in _STARTS if head.startswith(start))
    kind = next(known, "") or next(filter(None, (recognise(head) for recognise in _RECOGNISED)), "")
    return "" if kind.startswith(f"a {expected} file") else kind


def _empty(head: bytes) -> str:
    if head.strip(b"\0"):
        return ""
    return (
        "full of zeros: its download or copy did not finish" if head else "empty: its download did not finish"
    )


def _web_page(head: bytes) -> str:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _HTML.match(text):
        return (
            "a web page (HTML), as sites send instead of a file: use the link that downloads the file itself"
        )
    if text.startswith(_MESSAGES) or re.match(rb'\{"error"', text):
        line = text[:60].decode("ascii", "replace").splitlines()[0]
        return f"an error message of a web site ({line!a}) in place of the file: download it again"
    return ""


def _pickle(head: bytes) -> str:
    # PROTO 2 to 5, and then what opens a list, dictionary, tuple, class or number (PyTorch's magic number)
    if re.match(rb"\x80[\x02-\x05][\x8a\x8c\x95c}\](XKq]", head):
        return f"a Python pickle, as PyTorch wrote weights, {_PICKLED}"
    return ""


def _safetensors(head: bytes) -> str:
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") < 1 << 32:
        return "a safetensors file: give the folder that it is in, with its config.json"
    return ""


def _onnx(head: bytes) -> str:
    # ModelProto: ir_version (1, varint), then producer_name (2) or another field with a length
    if re.match(rb"\x08[\x01-\x20][\x12\x1a\x22\x2a\x32\x3a\x42]", head):
        return "an ONNX model: only GGUF and safetensors are read"
    return ""


def _others(head: bytes) -> str:
    if head[257:262] == b"ustar":
        return f"a tar archive: {_PACKED}"
    if head[4:8] == b"TFL3":
        return "a TensorFlow Lite model: only GGUF and safetensors are read"
    if re.match(rb"\s*[{\[]\s*[\"{\[]", head):
        return "a JSON file"
    return ""


_RECOGNISED: tuple[Callable[[bytes], str], ...] = (_empty, _web_page, _pickle, _safetensors, _onnx, _others)
