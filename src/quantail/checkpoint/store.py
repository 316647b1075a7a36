"""A tree of values as the bytes of one safetensors file, and back, every byte verified.

Layout: tensors as safetensors keeps them; everything else as one JSON text under the metadata key `quantail`, keys sorted,
so that equal values give equal bytes. The text holds the SHA-256 of the whole file, computed with zeros in its own place.
Nothing in such a file can be executed.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from quantail.checkpoint.tree import decoded, encoded
from quantail.errors import CheckpointError
from quantail.version import version

FORMAT = 1  # raise it when an older Quantail could misread a file
KEY = "quantail"
BLANK = "0" * 64
FOREIGN = {
    b"PK": "a zip archive: weights of stable-baselines3 come in through DistributionalPPO.from_sb3",
    b"\x80": "a pickle, which Quantail never reads, for it could run code",
}


class NewerFormat(CheckpointError):
    """A file that a later Quantail wrote: whole, so nothing older may stand in for it."""


def pack(tree: Mapping[str, Any]) -> bytes:
    """The bytes of a file; equal trees give equal bytes."""
    tensors: dict[str, Tensor] = {}
    document = {"format": FORMAT, "version": version(), "sha256": BLANK, "tree": encoded(tree, tensors)}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    data = safetensors.torch.save(tensors, {KEY: text})
    return data.replace(BLANK.encode(), digest(data).encode(), 1)


def unpack(data: bytes, name: str) -> dict[str, Any]:
    """The tree in a file's bytes; anything that is not exactly what `pack` wrote is refused in one sentence about `name`."""
    document = _document(data, name)
    if (written := document.get("format")) != FORMAT:
        newer = isinstance(written, int) and written > FORMAT
        remedy = "install that version, or a later one" if newer else "read it with that version"
        raise (NewerFormat if newer else CheckpointError)(
            f"{name} has format {written}, written by Quantail {document.get('version')}; this is {version()}, which reads "
            f"format {FORMAT}: {remedy}"
        )
    claimed = document.get("sha256")
    if not isinstance(claimed, str) or len(claimed) != 64 or data.count(claimed.encode()) != 1:
        raise _damaged(name, "holds no checksum")
    if digest(data.replace(claimed.encode(), BLANK.encode())) != claimed:
        raise _damaged(name, "does not match its checksum")
    try:
        tree = decoded(document["tree"], safetensors.torch.load(data))
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(name, f"cannot be read ({type(error).__name__})") from error
    if not isinstance(tree, dict):
        raise _damaged(name, "holds no mapping")
    return tree


def read(path: Path) -> dict[str, Any]:
    """The tree in a file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no file {path}; look at the path, or at what lies in {path.parent}") from error
    except OSError as error:
        raise CheckpointError(f"{path} could not be read ({error.strerror}); it has to be a file that you may read") from error
    return unpack(data, str(path))


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _document(data: bytes, name: str) -> dict[str, Any]:
    """The JSON under our key of the metadata."""
    for start, kind in FOREIGN.items():
        if data.startswith(start) and data[8:9] != b"{":  # the first eight bytes of safetensors are a length
            raise CheckpointError(f"{name} is no checkpoint of Quantail but {kind}")
    size = int.from_bytes(data[:8], "little")
    if not 2 <= size <= len(data) - 8:
        raise _damaged(name, f"is cut off, or no safetensors file ({len(data)} bytes)")
    try:
        header = json.loads(data[8 : 8 + size])
        text = header.get("__metadata__", {}).get(KEY)
        document = None if text is None else json.loads(text)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise _damaged(name, "has a header that is no JSON") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{name} is a safetensors file, but no checkpoint of Quantail; give one that Quantail has saved")
    return document


def _damaged(name: str, what: str) -> CheckpointError:
    return CheckpointError(f"{name} {what}; it is damaged, or no checkpoint of Quantail: use an older one from the same folder")
