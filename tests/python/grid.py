"""Opens, reads and writes arrays that `zarrfs create` has created with many options, and compares them with those that
zarr-python creates with the same options.

    grid.py CASES

CASES is the file of a JSON list of objects: `path`, a directory with the arrays `empty` and, except for objects,
`full`; `options`, the options; `empty` and `full`, the flat bytes that zarrfs reads from them, in hex; `raw`, the bytes
from which `full` was created.

With zarr 2.18 an array `theirs` is created beside them, with the same dtype, codecs and fill value, and gets the same
values: its document and its values must be equal. If zarr 3 can read `theirs`, it must read the same from `full`.
"""
import json
import sys
import warnings

import numcodecs
import numpy as np
import zarr

warnings.simplefilter("ignore")

OBJECTS = {
    "vlen-utf8": ["", "a", "ä€", "long" * 9, "b", "c", "d"],
    "vlen-bytes": [b"", b"\0", b"x", b"yz", b"1", b"2", b"3"],
    "vlen-array": [np.arange(n, dtype="<i4") for n in range(7)],
}
ANY = ["a", 1, 2.5, None, True, [1, 2], {"k": 1}]


def load(path):
    with open(path) as f:
        return json.load(f)


def config(codec):
    return codec and numcodecs.get_codec(dict(codec)).get_config()


def is_equal(a, b):
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "fc":
        # a long double contains padding bytes
        return np.array_equal(a, b, equal_nan=True)
    if a.dtype.hasobject:
        return all(np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y for x, y in zip(a.flat, b.flat))
    return a.tobytes() == b.tobytes()


def values(case, z):
    if not z.dtype.hasobject:
        return np.frombuffer(bytes.fromhex(case["raw"]), dtype=z.dtype).reshape(z.shape)
    made = np.zeros(z.shape, dtype=z.dtype)
    if z.dtype.kind == "V":
        for i in range(made.size):
            made.flat[i] = tuple(ANY[i] if z.dtype[name].hasobject else i for name in z.dtype.names)
    else:
        made[:] = None
        items = OBJECTS.get(z.filters[0].codec_id, ANY)
        for i in range(made.size):
            made[np.unravel_index(i, made.shape)] = items[i]
    return made


def compare_with_theirs(case, z, data):
    path = case["path"]
    theirs = zarr.create(
        store=f"{path}/theirs", shape=z.shape, chunks=z.chunks, dtype=z.dtype, compressor=z.compressor,
        filters=z.filters, fill_value=z.fill_value, order=z.order, dimension_separator=z._dimension_separator,
    )
    ours, wanted = load(f"{path}/empty/.zarray"), load(f"{path}/theirs/.zarray")
    for document in ours, wanted:
        document["compressor"] = config(document["compressor"])
        document["filters"] = [config(f) for f in document["filters"] or []]
    assert ours == wanted, f"document {ours}, zarr makes {wanted}"
    theirs[...] = data
    return theirs[...]


def check2(case):
    path = case["path"]
    z = zarr.open_array(f"{path}/empty", mode="r+")
    if z.fill_value is not None and not z.dtype.hasobject:
        shown = np.frombuffer(bytes.fromhex(case["empty"]), dtype=z.dtype).reshape(z.shape)
        assert is_equal(z[...], shown), f"fill value {z[...]}, zarrfs reads {shown}"
    data = values(case, z)
    wanted = compare_with_theirs(case, z, data)
    z[...] = data
    assert is_equal(zarr.open_array(f"{path}/empty", mode="r")[...], wanted), "other values are read than written"
    if "full" in case:
        full = zarr.open_array(f"{path}/full", mode="r")[...]
        shown = np.frombuffer(bytes.fromhex(case["full"]), dtype=z.dtype).reshape(z.shape)
        assert is_equal(full, wanted), f"reads {full}, and from zarr's own array {wanted}"
        assert is_equal(full, shown), f"reads {full}, zarrfs reads {shown}"
        if not z.filters and np.array_equal(data, data):
            # zarr-python does not copy the padding bytes of long doubles
            is_padded = z.dtype.char in "gG"
            assert is_equal(full, data) if is_padded else full.tobytes() == data.tobytes(), "values were lost"


def check3(case):
    path, ours = case["path"], "full" if "full" in case else "empty"
    try:
        wanted = zarr.open_array(f"{path}/theirs", mode="r")[...]
    except Exception:
        return False
    read = zarr.open_array(f"{path}/{ours}", mode="r")[...]
    assert is_equal(np.asarray(read), np.asarray(wanted)), f"reads {read}, and from zarr's own array {wanted}"
    return True


def main():
    cases, failed, read = load(sys.argv[1]), [], 0
    for case in cases:
        try:
            read += (check2 if zarr.__version__.startswith("2.") else check3)(case) is not False
        except Exception as e:
            failed.append(f"{case['options']}: {type(e).__name__}: {e}")
    print(f"zarr {zarr.__version__}: {read} of {len(cases)} arrays")
    if failed:
        print("\n".join(failed))
        sys.exit(1)


main()
