"""Reads and writes stores of Zarr v3 through mounts that show them as v2.

    view_v2.py shards STORE           adds an array in shards (with zarr 3) view_v2.py expect STORE           prints
    attributes, shapes, types and digests of a store of v3 as JSON (with zarr 3) view_v2.py read MOUNT EXPECTED
    compares a mount with that output (with zarr 2) view_v2.py write MOUNT            creates, resizes, appends, and
    sets attributes (with zarr 2) view_v2.py written STORE          checks the values that `write` has stored (with zarr
    3) view_v2.py gdal MOUNT EXPECTED    reads arrays of two dimensions as GDAL does (with rasterio)

EXPECTED is a file with the output of `expect`.
"""
import base64
import hashlib
import json
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")


def digest(values):
    values = np.asarray(values)
    if values.dtype.kind in "OT":
        return hashlib.sha256(json.dumps(values.tolist()).encode()).hexdigest()
    return hashlib.sha256(values.astype(values.dtype.newbyteorder("<")).tobytes()).hexdigest()


def shards(store):
    import zarr

    group = zarr.open_group(store, mode="a")
    geometry = dict(shape=(10, 9), chunks=(2, 3), shards=(4, 9))
    array = group.create_array("sharded", dtype="<u2", dimension_names=["y", "x"], **geometry)
    array[1:, :8] = np.arange(72).reshape(9, 8)


def expect(store):
    import zarr

    found = {}
    for path, node in zarr.open_group(store, mode="r", use_consolidated=False).members(max_depth=None):
        entry = {"attributes": dict(node.attrs)}
        if isinstance(node, zarr.Array):
            names = node.metadata.dimension_names
            if names and None not in names:
                entry["attributes"]["_ARRAY_DIMENSIONS"] = list(names)
                missing = entry["attributes"].get("_FillValue")
                if node.dtype.kind == "f" and isinstance(missing, str):
                    entry["attributes"]["_FillValue"] = np.frombuffer(base64.b64decode(missing), "<f8")[0].item()
            entry |= {"digest": digest(node[...]), "shape": node.shape, "dtype": node.dtype.str, "ndim": node.ndim}
        found[path] = entry
    print(json.dumps(found))


def load(path):
    with open(path) as f:
        return json.load(f)


def read(mount, expected):
    import zarr

    groups = [zarr.open_group(mount, mode="r"), zarr.open_consolidated(mount)]
    expected = load(expected)
    for group in groups:
        for path, entry in expected.items():
            node = group[path]
            # NaN is not equal to itself
            attributes = (json.dumps(a, sort_keys=True) for a in (dict(node.attrs), entry["attributes"]))
            assert next(attributes) == next(attributes), f"{path}: {dict(node.attrs)}"
            if "digest" in entry:
                assert list(node.shape) == entry["shape"], f"{path}: {node.shape}"
                assert digest(node[...]) == entry["digest"], f"{path}: other values"
                assert node.compressor is None and node.filters in (None, []) or node.dtype == object, path
    found = []
    groups[0].visit(found.append)
    assert sorted(found) == sorted(expected), sorted(found)
    print(f"zarr {zarr.__version__}: {len(expected)} nodes of a store of v3")


def ramp(*shape):
    return np.arange(np.prod(shape)).reshape(shape)


def write(mount):
    import zarr

    group = zarr.open_group(mount, mode="a")
    made = group.create_group("made")
    made.attrs["title"] = "t\u00eftle"
    made.attrs.update({"list": [1, 2.5, None]})
    a = made.create_dataset("a", shape=(5, 6), chunks=(2, 4), dtype="<i4", compressor=None, fill_value=-1)
    a[:, :5] = ramp(5, 5)
    a.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
    a.attrs["units"] = "K"
    a.resize(6, 6)
    a.append(np.full((3, 6), 7, "<i4"))
    a.resize(8, 8)
    b = made.create_dataset("deep/b", shape=(4, 4), chunks=(2, 2), dtype=">f8", compressor=None, dimension_separator="/")
    b[...] = ramp(4, 4) / 3
    made.array("words", np.array(["a", "b\u00e4r", ""], object), chunks=2, dtype=object,
               object_codec=__import__("numcodecs").VLenUTF8(), compressor=None)
    for _ in range(2):
        again = made.create_dataset("again", shape=(3,), chunks=(2,), dtype="|u1", compressor=None, overwrite=True)
        again[...] = [1, 2, 3]
    made.create_dataset("gone", shape=(3,), chunks=(2,), dtype="|u1", compressor=None)[...] = 1
    del made["gone"]
    made.require_group("empty/below")
    del made["empty"]
    # change arrays that existed before
    old = group["zstd"]
    old.append(np.full((3, 7), 2.5, "<f4"))
    old.attrs["changed"] = True
    group["words"][1] = "other"
    zarr.consolidate_metadata(mount)
    assert zarr.open_consolidated(mount)["made/a"].attrs["units"] == "K"


def written(store):
    import zarr

    group = zarr.open_group(store, mode="r", zarr_format=3)
    made = group["made"]
    assert dict(made.attrs) == {"title": "t\u00eftle", "list": [1, 2.5, None]}, dict(made.attrs)
    names = sorted(name for name, _ in made.members(max_depth=None))
    assert names == ["a", "again", "deep", "deep/b", "words"], names
    a = made["a"]
    wanted = np.full((8, 8), -1)
    wanted[:5, :5] = ramp(5, 5)
    wanted[6:8, :6] = 7
    assert np.array_equal(a[...], wanted), a[...]
    assert a.metadata.dimension_names == ("y", "x") and dict(a.attrs) == {"units": "K"}, a.metadata
    assert np.array_equal(made["deep/b"][...], ramp(4, 4) / 3)
    assert made["words"][...].tolist() == ["a", "b\u00e4r", ""]
    assert made["again"][...].tolist() == [1, 2, 3]
    assert (group["zstd"][10:13] == 2.5).all() and group["zstd"].attrs["changed"] is True
    assert "ZstdCodec" in repr(group["zstd"].metadata.codecs) and group["words"][1] == "other"
    plain = zarr.open_group(store, mode="r", zarr_format=3, use_consolidated=False)
    all_nodes = (sorted(name for name, _ in g.members(max_depth=None)) for g in (group, plain))
    assert next(all_nodes) == next(all_nodes)
    print(f"zarr {zarr.__version__}: {len(names)} nodes were written as v2 and read as v3")


def gdal(mount, expected):
    import rasterio

    compared = []
    for path, entry in load(expected).items():
        if entry.get("ndim") == 2 and 0 not in entry["shape"] and entry["dtype"] in ("<f4", "<i2", "<u4", "<i4", ">i4", "<f8", "|u1"):
            with rasterio.open(f'ZARR:"{mount}/{path}"') as data:
                assert digest(data.read(1)) == entry["digest"], f"{path}: other values"
            compared.append(path)
    assert len(compared) > 4, compared
    print(f"GDAL {rasterio.__gdal_version__}: {', '.join(compared)}")


def main():
    command, *args = sys.argv[1:]
    commands = {"shards": shards, "expect": expect, "read": read, "write": write, "written": written, "gdal": gdal}
    commands[command](*args)


main()
