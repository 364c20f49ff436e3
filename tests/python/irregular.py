#!/usr/bin/env python3
"""Writes and reads Zarr v3 arrays whose chunks or shards differ in length, with NumPy and numcodecs alone.

    irregular.py make STORE           writes arrays; their items count up from 0
    irregular.py check STORE FOLDER   compares the chunks of every array with its flat bytes, the file FOLDER/<array>

STORE is a folder without a group. No library of this Python version reads rectilinear grids.
"""
import itertools
import json
import pathlib
import struct
import sys

import google_crc32c
import numcodecs
import numpy as np

# name: shape, and lengths of the chunks along each dimension in the spelling of the document
GRIDS = {
    "line": ([1000], [[[10, 20], 300, 500, 7]]),
    "plane": ([60, 45], [[30, 1, 29], [[20, 2], 10]]),
    "mixed": ([9, 7, 8], [[2, 3, 4], 3, [8]]),
    "months": ([365, 11], [[31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], 4]),
    "beyond": ([5, 6], [[3, 4, 9], [6, 6]]),
    "shards": ([37, 20], [[8, 4, 12, 16], [[10, 2]]]),
}
# the shape of the chunks in the shards of that grid
IN_SHARDS = (4, 5)
EMPTY = 2**64 - 1
CODECS = {
    "plain": [],
    "gzip": [{"name": "gzip", "configuration": {"level": 1}}],
    "zstd": [{"name": "zstd", "configuration": {"level": 3, "checksum": False}}],
    "blosc": [{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4,
                                                  "blocksize": 0}}],
}
COMPRESSORS = {"gzip": numcodecs.GZip(1), "zstd": numcodecs.Zstd(3), "blosc": numcodecs.Blosc("lz4", 5, 1)}


def bounds(lengths, length):
    """Returns the range of items of each chunk, along a dimension, that holds any of `length` items."""
    if isinstance(lengths, int):
        lengths = [[lengths, -(-length // lengths)]]
    each = itertools.chain(*([run[0]] * run[1] if isinstance(run, list) else [run] for run in lengths))
    ends = list(itertools.accumulate(each))
    return [(start, end) for start, end in zip([0, *ends], ends) if start < length]


def chunks(document):
    """Returns the key and place of each chunk in the array with all padding, and the shape of that array."""
    lengths = document["chunk_grid"]["configuration"]["chunk_shapes"]
    axes = [bounds(along, length) for along, length in zip(lengths, document["shape"])]
    places = []
    for at in itertools.product(*(range(len(axis)) for axis in axes)):
        place = tuple(slice(*axis[i]) for axis, i in zip(axes, at))
        places.append(("/".join(["c", *map(str, at)]), place))
    return places, [axis[-1][1] for axis in axes]


def in_shard(shape):
    """Yields the place of each chunk in a shard."""
    for at in itertools.product(*(range(length // c) for length, c in zip(shape, IN_SHARDS))):
        yield tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, IN_SHARDS))


def encode_chunk(items, order, codec):
    value = np.ascontiguousarray(items.transpose(order))
    return COMPRESSORS[codec].encode(value) if codec in COMPRESSORS else value.tobytes()


def decode_chunk(value, shape, order, codec):
    value = COMPRESSORS[codec].decode(value) if codec in COMPRESSORS else value
    turned = np.frombuffer(value, "<f4").reshape([shape[axis] for axis in order])
    return turned.transpose(np.argsort(order))


def encode_shard(items, order, codec):
    """Returns a shard: its chunks, each encoded, and the index of their offsets and lengths."""
    value, entries = b"", []
    for place in in_shard(items.shape):
        chunk = encode_chunk(items[place], order, codec)
        entries += [len(value), len(chunk)]
        value += chunk
    index = np.array(entries, "<u8").tobytes()
    return value + index + struct.pack("<I", google_crc32c.value(index))


def decode_shard(value, shape, order, codec, fill):
    items, places = np.full(shape, fill, "<f4"), list(in_shard(shape))
    index = value[len(value) - 16 * len(places) - 4:]
    assert struct.unpack("<I", index[-4:])[0] == google_crc32c.value(index[:-4]), "the index's checksum"
    entries = np.frombuffer(index[:-4], "<u8").reshape(-1, 2).tolist()
    for (offset, length), place in zip(entries, places):
        if (offset, length) != (EMPTY, EMPTY):
            items[place] = decode_chunk(value[offset:offset + length], items[place].shape, order, codec)
    return items


def make(store):
    for (grid, (shape, lengths)), (codec, compress), turned in itertools.product(
            GRIDS.items(), CODECS.items(), (False, True)):
        order = list(range(len(shape)))[::-1 if turned else 1]
        steps = [{"name": "transpose", "configuration": {"order": order}}] if turned else []
        codecs = [*steps, {"name": "bytes", "configuration": {"endian": "little"}}, *compress]
        if grid == "shards":
            index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
            codecs = [{"name": "sharding_indexed", "configuration": {
                "chunk_shape": list(IN_SHARDS), "codecs": codecs, "index_codecs": index, "index_location": "end"}}]
        folder = store / f"{grid}-{codec}{'-turned' if turned else ''}"
        folder.mkdir(parents=True)
        document = {
            "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "float32", "fill_value": -1.0,
            "chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": lengths}},
            "chunk_key_encoding": {"name": "default"}, "attributes": {}, "codecs": codecs,
        }
        (folder / "zarr.json").write_text(json.dumps(document))
        places, padded = chunks(document)
        full = np.full(padded, 7, "<f4")
        full[tuple(map(slice, shape))] = np.arange(np.prod(shape), dtype="<f4").reshape(shape)
        for key, place in places:
            encode = encode_shard if grid == "shards" else encode_chunk
            (folder / key).parent.mkdir(parents=True, exist_ok=True)
            (folder / key).write_bytes(encode(full[place], order, codec))


def check(store, expected):
    names = [f"{grid}-{codec}{turned}" for grid in GRIDS for codec in CODECS for turned in ("", "-turned")]
    for name in names:
        folder, (grid, codec, *turned) = store / name, name.split("-")
        document = json.loads((folder / "zarr.json").read_text())
        order = list(range(len(document["shape"])))[::-1 if turned else 1]
        places, padded = chunks(document)
        full = np.full(padded, document["fill_value"], "<f4")
        for key, place in places:
            if (folder / key).exists():
                value, shape = (folder / key).read_bytes(), full[place].shape
                full[place] = (decode_shard(value, shape, order, codec, document["fill_value"]) if grid == "shards"
                               else decode_chunk(value, shape, order, codec))
        flat = full[tuple(map(slice, document["shape"]))].tobytes()
        assert flat == (expected / name).read_bytes(), name
    print(f"{len(names)} arrays with chunks or shards of different lengths are as written")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", store]:
            make(pathlib.Path(store))
        case ["check", store, expected]:
            check(pathlib.Path(store), pathlib.Path(expected))
        case _:
            sys.exit(__doc__)
