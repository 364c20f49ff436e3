"""Makes a hierarchy, and compares one that was copied through mounts with it.

    copied.py make STORE FORMAT
    copied.py make_sparse STORE FORMAT none|default
    copied.py compare STORE COPY
    copied.py increased STORE COPY

With zarr 2.18 or 3; of Zarr v3 with zarr 3. In the second copy, CDO or NCO has added 1 to `t` of the root, and attributes.
"""
import contextlib
import sys
import warnings

import numpy as np
import xarray as xr
import zarr

warnings.simplefilter("ignore")
ZARR3 = int(zarr.__version__.split(".")[0]) >= 3


def make(store, zarr_format):
    options = {"zarr_format": int(zarr_format)} if ZARR3 else {}
    random = np.random.default_rng(1)
    values = random.normal(280, 5, (12, 10, 18)).astype("f4")
    values[3, 2:5] = np.nan
    dataset = xr.Dataset(
        {"t": (("time", "lat", "lon"), values, {"units": "K"}), "mask": (("lat", "lon"), random.integers(1, 3, (10, 18), "i2"))},
        coords={
            "time": ("time", np.arange(12.0), {"units": "days since 2000-01-01"}),
            "lat": ("lat", np.linspace(-80, 80, 10), {"units": "degrees_north"}),
            "lon": ("lon", np.linspace(0, 340, 18), {"units": "degrees_east"}),
        },
        attrs={"title": "copied"},
    )
    for group, mode in (None, "w"), ("g/sub", "a"):
        dataset.to_zarr(store, mode=mode, group=group, encoding={"t": {"chunks": (5, 5, 9)}}, **options)


def make_sparse(store, zarr_format, codec):
    """Makes arrays with chunks that are missing, and chunks of fill values that are stored."""
    random = np.random.default_rng(1)
    options, more = ({"zarr_format": int(zarr_format)}, {}) if ZARR3 else ({}, {})
    if ZARR3:
        more["chunk_key_encoding"] = {"name": "v2", "separator": "."}
    if codec == "none":
        more["compressors" if ZARR3 else "compressor"] = None

    def array(group, name, fill_value, dtype):
        make = group.create_array if ZARR3 else group.create_dataset
        return make(name, shape=(40, 30), chunks=(10, 9), dtype=dtype, fill_value=fill_value, **more)

    root = zarr.open_group(store, mode="w", **options)
    root.attrs["title"] = "sp\u00e4rlich"
    for group in root, root.create_group("g/sub"):
        for name, fill_value, dtype in ("zero", 0, "i4"), ("seven", 7, "<i2"), ("nan", float("nan"), "f4"):
            made = array(group, name, fill_value, dtype)
            made.attrs["units"] = "m"
            made[0:10, 0:9] = random.integers(1, 100, (10, 9))
            made[15:25, 10:20] = random.integers(1, 100, (10, 10))
        array(group, "empty", 0, "i2")
        with zarr.config.set({"array.write_empty_chunks": True}) if ZARR3 else contextlib.nullcontext():
            array(group, "filled", 5, "u1")[0:20] = 5
    zarr.consolidate_metadata(store)


def nodes(group, path=""):
    yield path, group
    for name, node in group.groups():
        yield from nodes(node, f"{path}/{name}")
    for name, node in group.arrays():
        yield f"{path}/{name}", node


def compare(store, copy):
    wanted = dict(nodes(zarr.open_group(store, mode="r", **({"use_consolidated": False} if ZARR3 else {}))))
    found = dict(nodes(zarr.open_group(copy, mode="r", **({"use_consolidated": False} if ZARR3 else {}))))
    assert wanted.keys() == found.keys(), (wanted.keys(), found.keys())
    assert len(wanted) == 13, sorted(wanted)
    for path, node in wanted.items():
        assert dict(node.attrs) == dict(found[path].attrs), path
        if hasattr(node, "shape"):
            np.testing.assert_array_equal(node[...], found[path][...], path)
            assert (node.dtype, node.chunks) == (found[path].dtype, found[path].chunks), path


def increased(store, copy):
    for name in "t", "lat", "lon", "time", "mask":
        was, now = (zarr.open_array(f"{path}/{name}", mode="r") for path in (store, copy))
        np.testing.assert_array_equal(was[...] + was.dtype.type(name == "t"), now[...], name)
        assert str(was.fill_value) == str(now.fill_value), name
        assert dict(was.attrs).items() <= dict(now.attrs).items(), (name, dict(was.attrs), dict(now.attrs))
        assert "missing_value" not in now.attrs, name


if __name__ == "__main__":
    {"make": make, "make_sparse": make_sparse, "compare": compare, "increased": increased}[sys.argv[1]](*sys.argv[2:])
