#!/usr/bin/env python3
"""Writes arrays that have two codecs for bytes, each pair in each place of an array, through a mount.

    codec_pairs.py make STORE    stores the documents
    codec_pairs.py write MOUNT   writes the values of each array
    codec_pairs.py check STORE   compares them with what zarr-python 3 reads
"""
import itertools
import json
import os
import struct
import sys
import warnings

import numpy as np

CODECS = [
    {"name": "gzip", "configuration": {"level": 1}},
    {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
    {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 1, "shuffle": "noshuffle", "blocksize": 0}},
    {"name": "crc32c"},
    {"name": "numcodecs.lz4", "configuration": {"acceleration": 1}},
    {"name": "numcodecs.adler32", "configuration": {}},
]
CHECKSUMS = [{"name": "crc32c"}, {"name": "numcodecs.crc32", "configuration": {}}]
# as long as CODECS
FILTERS = [
    {"id": "gzip", "level": 1},
    {"id": "zstd", "level": 1},
    {"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 0},
    {"id": "crc32"},
    {"id": "lz4", "acceleration": 1},
    {"id": "adler32"},
]
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
STRINGS = {"name": "vlen-utf8"}
SHAPE, CHUNK, SHARD, OUTER = 16, 2, 4, 8
VALUES = np.arange(SHAPE, dtype="<u4") * 1000003
TEXTS = [f"text {i}" for i in range(SHAPE)]


def sharding(chunk, codecs, index=(BYTES, {"name": "crc32c"})):
    configuration = {"chunk_shape": [chunk], "codecs": codecs, "index_codecs": list(index)}
    return {"name": "sharding_indexed", "configuration": configuration}


def v3(chunk, codecs, data_type="uint32"):
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [SHAPE],
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": "" if data_type == "string" else 0,
        "codecs": codecs,
        "attributes": {},
    }


def v2(filters, compressor, dtype="<u4"):
    return {
        "zarr_format": 2,
        "shape": [SHAPE],
        "chunks": [CHUNK],
        "dtype": dtype,
        "order": "C",
        "fill_value": "" if dtype == "|O" else 0,
        "filters": filters,
        "compressor": compressor,
    }


def documents():
    """Yields a name, the name of the document and the document of each array."""
    for (i, a), (j, b) in itertools.product(enumerate(CODECS), repeat=2):
        pair = f"{i}_{j}"
        places = {
            "chunk": v3(CHUNK, [BYTES, a, b]),
            "in_shard": v3(SHARD, [sharding(CHUNK, [BYTES, a, b])]),
            "around_shard": v3(SHARD, [sharding(CHUNK, [BYTES]), a, b]),
            "around_inner_shard": v3(OUTER, [sharding(SHARD, [sharding(CHUNK, [BYTES]), a, b])]),
            "around_both": v3(OUTER, [sharding(SHARD, [sharding(CHUNK, [BYTES]), a]), b]),
            "strings": v3(CHUNK, [STRINGS, a, b], "string"),
            "strings_in_shard": v3(SHARD, [sharding(CHUNK, [STRINGS, a, b])], "string"),
            "strings_around_shard": v3(SHARD, [sharding(CHUNK, [STRINGS]), a, b], "string"),
        }
        for place, document in places.items():
            yield f"{place}_{pair}", "zarr.json", document
        yield f"v2_{pair}", ".zarray", v2([FILTERS[i]], FILTERS[j])
        filters = [{"id": "vlen-utf8"}, FILTERS[i], FILTERS[j]]
        yield f"v2_strings_{pair}", ".zarray", v2(filters, FILTERS[0], "|O")
    for (i, a), (j, b) in itertools.product(enumerate(CHECKSUMS), repeat=2):
        yield f"index_{i}_{j}", "zarr.json", v3(SHARD, [sharding(CHUNK, [BYTES], (BYTES, a, b))])


def make(store):
    for name, file, document in documents():
        os.makedirs(os.path.join(store, name))
        with open(os.path.join(store, name, file), "w") as f:
            json.dump(document, f)


def vlen_utf8(texts):
    encoded = [text.encode() for text in texts]
    return struct.pack("<I", len(encoded)) + b"".join(struct.pack("<I", len(e)) + e for e in encoded)


def write(mount):
    for name, _, _ in documents():
        try:
            if "strings" in name:
                for n in range(SHAPE // CHUNK):
                    with open(os.path.join(mount, name, str(n)), "wb") as f:
                        f.write(vlen_utf8(TEXTS[n * CHUNK : (n + 1) * CHUNK]))
            else:
                with open(os.path.join(mount, name, "data.raw"), "r+b") as f:
                    f.write(VALUES.tobytes())
        except OSError as e:
            sys.exit(f"{name}: {e}")


def check(store):
    import zarr

    warnings.simplefilter("ignore")
    count = 0
    for name, _, _ in documents():
        read = zarr.open_array(os.path.join(store, name), mode="r")[:].tolist()
        if read != (TEXTS if "strings" in name else VALUES.tolist()):
            sys.exit(f"{name}: {read}")
        count += 1
    print(count, "arrays with two codecs")


{"make": make, "write": write, "check": check}[sys.argv[1]](sys.argv[2])
