"""Stores in one directory, seen through a mount of the directory:

    many_stores.py make DIRECTORY               writes stores of both formats, in directories and in archives
    many_stores.py compare MOUNT DIRECTORY      compares each store with what zarr-python reads without the mount
    many_stores.py create MOUNT DIRECTORY       creates stores through the mount, and reads them without it
"""

import sys
import warnings
from pathlib import Path

import numpy
import xarray
import zarr
from zarr.storage import LocalStore, ZipStore

warnings.simplefilter("ignore")


def fill(group, seed, compressors="auto"):
    """Writes arrays and a group."""
    values = numpy.random.default_rng(seed).integers(0, 1000, (7, 12))
    array = group.create_array("a", shape=(7, 12), chunks=(3, 5), dtype="i4", compressors=compressors)
    array[:] = values
    array.attrs["units"] = "K"
    below = group.create_group("g")
    below.attrs["seed"] = seed
    below.create_array("b", shape=(5,), chunks=(2,), dtype="f8", compressors=compressors)[:] = values[0, :5] / 3


def make(directory):
    (directory / "sub").mkdir(parents=True)
    for name, zarr_format in [("two.zarr", 2), ("three.zarr", 3), ("sub/two.zarr", 2), ("sub/three.zarr", 3)]:
        fill(zarr.create_group(directory / name, zarr_format=zarr_format), len(name))
        zarr.consolidate_metadata(directory / name, zarr_format=zarr_format)
        with ZipStore(f"{directory / name}.zip", mode="w") as archive:
            fill(zarr.create_group(archive, zarr_format=zarr_format), 100 + len(name))
    single = zarr.create_array(directory / "single.zarr", shape=(4,), chunks=(2,), dtype="u2")
    single[:] = range(4)


def contents(node):
    """Returns the values and attributes of a group or array, and of everything below it."""
    found = {"": (dict(node.attrs), node[:].tolist() if isinstance(node, zarr.Array) else None)}
    if isinstance(node, zarr.Group):
        for name, member in node.members(max_depth=None):
            found[name] = (dict(member.attrs), member[:].tolist() if isinstance(member, zarr.Array) else None)
    return found


def compare(mount, directory):
    count = 0
    for path in sorted(path for path in directory.rglob("*") if path.name.endswith((".zarr", ".zarr.zip"))):
        place = mount / path.relative_to(directory)
        assert place.is_dir(), place
        direct = ZipStore(path, read_only=True) if path.is_file() else LocalStore(path, read_only=True)
        for consolidated in (False, None):
            expected = contents(zarr.open(direct, mode="r", use_consolidated=consolidated))
            found = contents(zarr.open(LocalStore(place, read_only=True), mode="r", use_consolidated=consolidated))
            assert found == expected, (place, found, expected)
            assert (len(found) > 1) == (path.name != "single.zarr"), found
        count += 1
    print(f"{count} stores as zarr-python reads them")


def create(mount, directory):
    for zarr_format in (2, 3):
        for how in ("group", "mkdir"):
            name = f"new-{how}{zarr_format}.zarr"
            if how == "mkdir":
                (mount / name).mkdir()
                assert list((mount / name).iterdir()) == []
            group = zarr.open_group(mount / name, mode="a", zarr_format=zarr_format)
            fill(group, zarr_format, None)
            zarr.consolidate_metadata(mount / name, zarr_format=zarr_format)
            group.create_array("later", shape=(2,), dtype="i2", compressors=None)[:] = [1, 2]
            direct = zarr.open(LocalStore(directory / name), mode="r")
            assert direct.metadata.zarr_format == zarr_format, name
            assert contents(direct) == contents(zarr.open(mount / name, mode="r")), name
            assert len(contents(direct)) == 5, contents(direct)
    # with no format named, a new store is one of zarr-python's own format
    zarr.open_group(mount / "sub/default.zarr", mode="a").create_array("x", shape=(3,), dtype="i2")[:] = [1, 2, 3]
    assert (directory / "sub/default.zarr/zarr.json").exists() and not (directory / "sub/default.zarr/.zgroup").exists()
    data = xarray.Dataset({"t": (("y", "x"), numpy.arange(6.0).reshape(2, 3))}, {"x": [1, 2, 3]})
    data.to_zarr(mount / "dataset.zarr")
    xarray.testing.assert_identical(xarray.open_zarr(directory / "dataset.zarr").load(), data)
    xarray.testing.assert_identical(xarray.open_zarr(mount / "dataset.zarr").load(), data)
    # the values of a stored array change in place
    zarr.open(mount / "two.zarr")["a"][0, :2] = [-5, -6]
    assert zarr.open(directory / "two.zarr", mode="r")["a"][0, :2].tolist() == [-5, -6]


{"make": make, "compare": compare, "create": create}[sys.argv[1]](*map(Path, sys.argv[2:]))
