#!/usr/bin/env python3
"""Another writer on a store: carries out commands with zarr-python, one per line.

    foreign.py ARRAY [LOCKS]      (with zarr 2.18; ARRAY is the directory of an array of bytes of one dimension, LOCKS
                                  that of a ProcessSynchronizer)

    set START VALUE LENGTH      sets LENGTH elements to a value
    delete KEY                  deletes a chunk
    resize LENGTH               changes the shape
    digest                      prints the SHA-256 of the flat bytes

The answer to a command is one line, when the command is done.
"""
import hashlib
import sys

import zarr

sync = zarr.ProcessSynchronizer(sys.argv[2]) if len(sys.argv) > 2 else None
array = zarr.open_array(zarr.DirectoryStore(sys.argv[1]), mode="r+", synchronizer=sync)
for line in sys.stdin:
    verb, *numbers = line.split()
    answer = "done"
    if verb == "set":
        start, value, length = map(int, numbers)
        array[start : start + length] = value
    elif verb == "delete":
        del array.chunk_store[numbers[0]]
    elif verb == "resize":
        array.resize(int(numbers[0]))
    elif verb == "digest":
        answer = hashlib.sha256(array[:].tobytes()).hexdigest()
    else:
        sys.exit(f"no such command: {line}")
    print(answer, flush=True)
