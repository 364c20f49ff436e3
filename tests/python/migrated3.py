"""Compares stores that `zarrfs migrate --to 3` has converted with the values that zarr-python 2 has written to them.

    migrated3.py refused MATRIX      prints the arrays that Zarr v3 cannot describe, as a JSON object of stores
    migrated3.py compare MATRIX COPY (with zarr 3)
    migrated3.py datasets DIR        writes datasets with xarray, as v2 (with zarr 3 and xarray)
    migrated3.py same OLD NEW        compares datasets as xarray opens them (with zarr 3 and xarray)

MATRIX has the stores and the oracle of matrix.py. In COPY they are converted, without the arrays that `refused` prints.
"""
import hashlib
import json
import os
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")
OF_NUMBERS = ("astype", "delta", "fixedscaleoffset", "quantize")
BAD_DOCUMENTS = [f"bad-{w}" for w in "dtype order codec filter chunk-zero rank format fill shape".split()] + ["ok-unknown-keys"]
WITHOUT_FORM = ("categorize", "json2", "msgpack2", "pickle", "vlen-array", "base64")


def load(path):
    with open(path) as f:
        return json.load(f)


def entries(matrix):
    return [e for e in load(f"{matrix}/oracle.json")["arrays"] if not e["store"].startswith("v1/")]


def dtype_of(entry):
    spelled = entry["dtype"]
    return np.dtype([tuple(f) for f in fields(spelled)] if isinstance(spelled, list) else spelled)


def fields(spelled):
    for name, dtype, *shape in spelled:
        yield (name, list(fields(dtype)) if isinstance(dtype, list) else dtype, *map(tuple, shape))


def is_refused(entry):
    """Whether Zarr v3 cannot describe an array: it lacks a codec or data type, or readers disagree about it."""
    if entry["store"] == "odd.zarr" and entry["array"] in BAD_DOCUMENTS:
        return True
    if "dtype" not in entry:
        return False
    codecs = [c["id"] for c in entry["filters"] or []]
    dtype = dtype_of(entry)
    orders = set()

    def visit(dtype):
        if dtype.subdtype:
            return True
        if dtype.fields:
            return any([visit(dtype[name]) for name in dtype.names])
        if dtype.byteorder in "<=>" and dtype.kind not in "SVO":
            orders.add(dtype.byteorder.replace("=", "<"))
        return False

    has_subarray = visit(dtype)
    return (
        any(c in WITHOUT_FORM for c in codecs)
        or has_subarray
        or len(orders) > 1
        or any(c["id"] in OF_NUMBERS and (">" in orders or ">" in c.get("dtype", "")) for c in entry["filters"] or [])
    )


def refused(matrix):
    by_store = {}
    for entry in entries(matrix):
        if is_refused(entry):
            by_store.setdefault(entry["store"], []).append(entry["array"])
    print(json.dumps(by_store))


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def attributes_of(path):
    try:
        return load(f"{path}/.zattrs")
    except FileNotFoundError:
        return {}


def compare_array(path, old, entry):
    import zarr

    z = zarr.open_array(path, mode="r", zarr_format=3)
    dtype = dtype_of(entry)
    assert dict(z.attrs) == attributes_of(old), f"{path}: {dict(z.attrs)}"
    assert list(z.shape) == entry["shape"] and list(z.chunks) == entry["chunks"], path
    if entry.get("object"):
        before = zarr.open_array(old, mode="r", zarr_format=2)
        assert np.array_equal(z[...], before[...]), f"{path}: other objects"
        return
    assert z.dtype.newbyteorder("=") == dtype.newbyteorder("="), f"{path}: {z.dtype}"
    flat = np.asarray(z[...]).astype(dtype).tobytes()
    assert sha256(flat) == entry["sha256"], f"{path}: other data"


def compare(matrix, copy):
    import zarr

    compared = 0
    for entry in entries(matrix):
        path, old = (os.path.join(root, entry["store"], entry["array"]) for root in (copy, matrix))
        if is_refused(entry) or entry.get("expect") == "refuse":
            continue
        compare_array(path, old, entry)
        compared += 1
    groups = 0
    for store in sorted({e["store"] for e in entries(matrix)}):
        for folder, _, files in os.walk(os.path.join(copy, store)):
            left = [name for name in files if name in (".zarray", ".zgroup", ".zattrs", ".zmetadata")]
            assert not left, f"{folder}: {left}"
            old = os.path.join(matrix, os.path.relpath(folder, copy))
            if os.path.exists(f"{old}/.zgroup"):
                group = zarr.open_group(folder, mode="r", zarr_format=3, use_consolidated=False)
                assert dict(group.attrs) == attributes_of(old), folder
                groups += 1
    for store in ("consolidated.zarr", "stale.zarr"):
        plain, group = (zarr.open_group(f"{copy}/{store}", mode="r", use_consolidated=c) for c in (False, True))
        found, wanted = (sorted(name for name, _ in g.members(max_depth=None)) for g in (group, plain))
        assert found == wanted and "group/b" in wanted, (found, wanted)
        assert dict(group["group"].attrs) == {"title": "t\u00eftle"}
    print(f"zarr {zarr.__version__}: {compared} arrays, {groups} groups")


def datasets(folder):
    """Writes datasets with each form of missing values: encoded fill values, attributes, and none."""
    import xarray as xr

    t = np.sin(np.arange(60.0)).reshape(3, 4, 5)
    t[1, 2, 3] = np.nan
    data = {
        "plain": ((), 5),
        "nan": (("time", "y", "x"), t.astype("f4"), {"units": "K"}),
        "packed": (("time", "y", "x"), t, {}, {"dtype": "i2", "scale_factor": 0.001, "_FillValue": -32768}),
        "sentinel": (("time", "y", "x"), t, {}, {"_FillValue": -9999.0}),
        "counts": (("y", "x"), np.arange(20, dtype="u2").reshape(4, 5)),
        "flags": (("y",), np.array([True, False, True, True])),
        "words": (("y",), np.array(["a", "b\u00e4r", "", "d"], object)),
        "fixed": (("y",), np.array(["ab", "c", "", "d\u00e9"])),
    }
    coords = {"time": np.array(["2000-01-01", "2000-01-02", "2000-02-29"], "M8[ns]"), "x": np.arange(5) * 0.5}
    made = xr.Dataset(data, coords, {"title": "t\u00eftle", "list": [1, 2]})
    made.to_zarr(f"{folder}/plain.zarr", zarr_format=2, consolidated=False)
    made.to_zarr(f"{folder}/consolidated.zarr", zarr_format=2, consolidated=True)
    # state the missing value only in an attribute, as other writers do
    for name, missing in (("sentinel", -9999.0), ("counts", 7)):
        path = f"{folder}/plain.zarr/{name}"
        document, attributes = load(f"{path}/.zarray"), load(f"{path}/.zattrs")
        with open(f"{path}/.zarray", "w") as f:
            json.dump(document | {"fill_value": None}, f)
        with open(f"{path}/.zattrs", "w") as f:
            json.dump(attributes | {"_FillValue": missing}, f)


def same(old, new):
    import xarray as xr

    for name in sorted(os.listdir(old)):
        consolidated = name.startswith("consolidated")
        for decode in (True, False):
            before, after = (
                xr.open_zarr(f"{root}/{name}", consolidated=consolidated, decode_cf=decode, zarr_format=version)
                for root, version in ((old, 2), (new, 3))
            )
            if decode:
                xr.testing.assert_identical(before.load(), after.load())
            assert before.attrs == after.attrs and sorted(before) == sorted(after), name
            for variable in before.variables:
                dims = before[variable].dims, after[variable].dims
                assert dims[0] == dims[1], f"{name}/{variable}: {dims}"
    print(f"xarray {xr.__version__}: {', '.join(sorted(os.listdir(old)))}")


def main():
    command, *args = sys.argv[1:]
    {"refused": refused, "compare": compare, "datasets": datasets, "same": same}[command](*args)


main()
