"""Makes a hierarchy, and compares one that was copied through mounts with it.

    copied.py make STORE FORMAT
    copied.py compare STORE COPY
    copied.py increased STORE COPY

With zarr 2.18 or 3; of Zarr v3 with zarr 3. In the second copy, CDO or NCO has added 1 to `t` of the root, and attributes.
"""
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
    {"make": make, "compare": compare, "increased": increased}[sys.argv[1]](*sys.argv[2:])
