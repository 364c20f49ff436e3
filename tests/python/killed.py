"""Writes an array slice by slice with a library, for tests/durability/killed_writers.rs, which kills it.

create STORE [SHARD_LENGTH]     creates the array
write LIBRARY STORE [FROM TO]   writes slices along the first dimension, and prints the number of each once it is written
resume LIBRARY STORE            reads the list of `zarrfs info --json --absent` and writes the items that it names
same STORE                      compares the whole array
"""

import json
import sys

import numpy as np
import zarr

SHAPE, CHUNKS = (12, 300, 256), (1, 128, 128)
VALUES = np.random.default_rng(51).standard_normal(SHAPE)


def opened(library, store):
    if library == "tensorstore":
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": store}}
        return tensorstore.open(spec, open=True).result()
    if library == "zarrs":
        import zarrs  # noqa: F401

        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    return zarr.open_array(store, mode="r+")


def main(verb, *arguments):
    if verb == "create":
        shards = (int(arguments[1]), 256, 256) if len(arguments) > 1 else None
        zarr.create_array(arguments[0], shape=SHAPE, chunks=CHUNKS, shards=shards, dtype="f8", fill_value=0)
    elif verb == "write":
        array = opened(*arguments[:2])
        for i in range(*map(int, arguments[2:] or (0, SHAPE[0]))):
            array[i : i + 1] = VALUES[i : i + 1]
            print(i, flush=True)
    elif verb == "resume":
        array = opened(*arguments)
        [found] = json.load(sys.stdin)
        for box in found["absent"]:
            items = tuple(slice(*ends) for ends in box["items"])
            array[items] = VALUES[items]
    elif not np.array_equal(zarr.open_array(arguments[0], mode="r")[:], VALUES):
        sys.exit("the array differs")


main(*sys.argv[1:])
