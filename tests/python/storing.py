"""Compares a copy of the matrix, whose chunks zarrfs has encoded anew, with the results of numcodecs.

    storing.py MATRIX COPY      (with zarr 2.18)

Every chunk of COPY must decode to the same bytes as after numcodecs has encoded and decoded it, and zarr-python must read
these bytes.
"""
import json
import os
import sys
import warnings

import numpy as np
import zarr

from matrix import decode

warnings.simplefilter("ignore")


def bits(data, dtype):
    """Returns the bytes with one kind of NaN, since arithmetic may return any NaN."""
    if dtype.kind not in "fc" or not data:
        return data
    items = np.frombuffer(data, dtype)
    parts = items.view(dtype.type(0).real.dtype.newbyteorder(dtype.byteorder)).copy()
    parts[np.isnan(parts)] = np.nan
    return parts.tobytes()


def read(path):
    if not os.path.exists(path):
        return None
    with open(path, "rb") as f:
        return f.read()


def compare(matrix, copy, entry):
    name = os.path.join(entry["store"], entry["array"])
    z = zarr.open_array(os.path.join(copy, name), mode="r")
    with open(os.path.join(copy, name, ".zarray")) as f:
        meta = json.load(f)
    for key in entry["chunk_sha256"]:
        file = key.replace(".", entry["separator"])
        data = read(os.path.join(matrix, name, file))
        ours = read(os.path.join(copy, name, file))
        if z.dtype.hasobject:
            if data is not None:
                assert decode(meta, ours) == decode(meta, data), f"{name} {key}: other objects"
            yield key
            continue
        if data is None:
            blank = np.zeros((), z.dtype) if z.fill_value is None else np.array(z.fill_value, z.dtype)
            plain = np.full(z.chunks, blank, z.dtype).reshape(-1)
        else:
            plain = np.frombuffer(decode(meta, data), z.dtype)
        # encode flat items in the order of the bytes, since numcodecs.BitRound would turn order F into order C
        is_zfp = meta["compressor"] and meta["compressor"]["id"] == "zfpy"  # whose results depend on the shape
        want = decode(meta, z._encode_chunk(plain.reshape(z.chunks) if is_zfp else plain))
        got = decode(meta, ours)
        assert bits(got, z.dtype) == bits(want, z.dtype), f"{name} {key}: not the result of numcodecs"
        if "separator_undeclared" in entry:
            yield key
            continue
        place = tuple(slice(int(i) * c, min((int(i) + 1) * c, s)) for i, c, s in zip(key.split("."), z.chunks, z.shape))
        shown = np.empty([p.stop - p.start for p in place], z.dtype)
        z.get_basic_selection(place or ..., out=shown)
        chunk = np.frombuffer(want, z.dtype).reshape(z.chunks, order=z.order)
        cut = chunk[(..., *(slice(0, n) for n in shown.shape))]
        assert bits(shown.tobytes(), z.dtype) == bits(cut.tobytes(), z.dtype), f"{name} {key}: zarr reads other values"
        yield key


def main():
    matrix, copy = sys.argv[1:]
    with open(os.path.join(matrix, "oracle.json")) as f:
        entries = json.load(f)["arrays"]
    arrays = chunks = 0
    for entry in entries:
        # zarr 2 cannot read v1, and pickles are not loaded
        if entry.get("expect", "") == "" and entry["zarr_format"] == 2:
            chunks += sum(1 for _ in compare(matrix, copy, entry))
            arrays += 1
    print(f"{chunks} chunks of {arrays} arrays agree")


main()
