"""One file: equal values give equal bytes, every byte is verified, and nothing in it can run."""

import hashlib
import io
import json
import pickle
import struct
import zipfile

import pytest
import safetensors.torch
import torch

from quantail.checkpoint import store
from quantail.errors import CheckpointError

TREE = {
    "weights": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([True])},
    "count": 3,
    "name": "ü\u2028\x00",
    "x": 0.1,
}


@pytest.fixture(scope="module")
def packed():
    return store.pack(TREE)


def document(data):
    size = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["quantail"])


def rewritten(data, **changes):
    """The same file with another document and a valid checksum."""
    text = json.dumps({**document(data), "sha256": "0" * 64, **changes}, sort_keys=True, separators=(",", ":"))
    data = safetensors.torch.save(safetensors.torch.load(data), {"quantail": text})
    return data.replace(b"0" * 64, hashlib.sha256(data).hexdigest().encode(), 1)


def test_it_comes_back(packed):
    tree = store.unpack(packed, "x")
    assert torch.equal(tree["weights"]["w"], TREE["weights"]["w"])
    assert torch.equal(tree["weights"]["b"], TREE["weights"]["b"])
    assert {name: tree[name] for name in ("count", "name", "x")} == {"count": 3, "name": "ü\u2028\x00", "x": 0.1}


def test_equal_values_give_equal_bytes(packed):
    assert store.pack({"weights": {name: value.clone() for name, value in TREE["weights"].items()}} | TREE) == packed
    assert store.pack(TREE | {"count": 4}) != packed


def test_any_reader_of_safetensors_reads_the_tensors(packed, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(packed)
    tensors = safetensors.torch.load_file(tmp_path / "x.safetensors")
    assert torch.equal(tensors["weights.w"], TREE["weights"]["w"])


def test_the_checksum_is_that_of_the_whole_file_with_zeros_in_its_place(packed):
    claimed = document(packed)["sha256"]
    assert hashlib.sha256(packed.replace(claimed.encode(), b"0" * 64)).hexdigest() == claimed


def test_every_flipped_bit_is_seen(packed):
    for at in range(len(packed)):
        for bit in (1, 128):
            flipped = bytearray(packed)
            flipped[at] ^= bit
            with pytest.raises(CheckpointError, match=r"^x (is|has|holds|does|cannot)"):
                store.unpack(bytes(flipped), "x")


def test_every_cut_is_seen(packed):
    for size in range(len(packed)):
        with pytest.raises(CheckpointError, match=r"^x "):
            store.unpack(packed[:size], "x")
    with pytest.raises(CheckpointError, match="x does not match its checksum"):
        store.unpack(packed + b"\0", "x")


def zipped():
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("policy.pth", b"weights")
    return held.getvalue()


class Bomb:
    """What a pickle would run."""

    def __reduce__(self):
        return exec, ("raise SystemExit('a pickle ran')",)


def with_header(header):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is cut off"),
        (b"hello, world: a text file", "is cut off, or no safetensors file"),
        (zipped(), "a zip archive: weights of stable-baselines3 come in through"),
        (pickle.dumps(Bomb()), "a pickle, which Quantail never reads"),
        (safetensors.torch.save({"w": torch.ones(2)}), "is a safetensors file, but no checkpoint of Quantail"),
        (safetensors.torch.save({"w": torch.ones(2)}, {"format": "pt"}), "is a safetensors file, but no checkpoint"),
        (safetensors.torch.save({}, {"quantail": "[1]"}), "is a safetensors file, but no checkpoint"),
        (with_header(b"[" * 200_000), "header that is no JSON"),
        (with_header([]), "header that is no JSON"),
        (with_header({"__metadata__": {"quantail": "[" * 200_000}}), "header that is no JSON"),
        (with_header({"__metadata__": {"quantail": "9" * 5000}}), "header that is no JSON"),
        (with_header(b"\xff\xfe"), "header that is no JSON"),
        (struct.pack("<Q", 2**63) + b"{}", "is cut off"),
        (with_header({"__metadata__": {"quantail": '{"format":1}'}}), "holds no checksum"),
        (with_header({"__metadata__": {"quantail": '{"format":null}'}}), "has format None, written by Quantail None"),
    ],
)
def test_what_is_none_of_ours_is_refused_by_its_kind(data, words):
    with pytest.raises(CheckpointError, match=words):
        store.unpack(data, "x")


def test_a_newer_format_is_refused_with_both_versions(packed):
    newer = rewritten(packed, format=2, version="9.1.0")
    with pytest.raises(
        CheckpointError, match=r"x has format 2, written by Quantail 9\.1\.0; this is .*, which reads format 1: install"
    ):
        store.unpack(newer, "x")
    assert store.unpack(rewritten(packed), "x")["count"] == 3


@pytest.mark.parametrize(
    "tree", [{"tensor": "gone"}, {"shell": "rm -r"}, 3, {"map": 3}, {"record": {"x": {"map": [[None, 1]]}}}, {"tuple": []}]
)
def test_a_crafted_tree_with_a_valid_checksum_is_refused(packed, tree):
    with pytest.raises(CheckpointError, match=r"^x "):
        store.unpack(rewritten(packed, tree=tree), "x")


def test_missing_and_unreadable_files_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no file .*gone\.safetensors"):
        store.read(tmp_path / "gone.safetensors")
    with pytest.raises(CheckpointError, match="could not be read"):
        store.read(tmp_path)
