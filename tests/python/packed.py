"""Compares archives that `zarrfs pack` has written with the stores that they were made of.

    packed.py values STORE ARCHIVE...    compares the arrays and attributes that zarr-python reads (2 or 3)
    packed.py members STORE ARCHIVE      compares all files of a directory with the members, by zipfile
    packed.py ome STORE                  writes an image of OME-NGFF 0.5 with shards (zarr 3)
    packed.py order ARCHIVE              prints the names of the members in order, and the comment
"""

import os
import sys
import warnings
import zipfile

import numpy as np
import zarr

warnings.simplefilter("ignore")
IS_ZARR3 = zarr.__version__.startswith("3")


def opened(path):
    """Opens a store by the class of zarr-python for it, read-only."""
    if not IS_ZARR3:
        return zarr.ZipStore(path, mode="r") if path.endswith(".zip") else zarr.DirectoryStore(path)
    from zarr.storage import LocalStore, ZipStore

    return ZipStore(path, mode="r") if zipfile.is_zipfile(path) else LocalStore(path, read_only=True)


def nodes(root):
    """Returns all groups and arrays by name."""
    found = {"": root}
    if isinstance(root, zarr.Array):
        return found
    if IS_ZARR3:
        return found | dict(root.members(max_depth=None))
    root.visititems(lambda name, node: found.__setitem__(name, node))
    return found


def read(array):
    """Returns the values of an array, or the name of the error."""
    try:
        return np.asarray(array[...])
    except Exception as e:
        return type(e).__name__


def values(store, archives):
    options = {"use_consolidated": False} if IS_ZARR3 else {}
    arrays = 0
    for archive in archives:
        both = [nodes(zarr.open(opened(path), mode="r", **options)) for path in (store, archive)]
        assert both[0].keys() == both[1].keys(), (store, both[0].keys() ^ both[1].keys())
        for name, old in both[0].items():
            new = both[1][name]
            assert dict(old.attrs) == dict(new.attrs), (store, name)
            # without a fill value, zarr-python leaves items of missing chunks as they are in memory
            if isinstance(old, zarr.Array) and old.fill_value is not None:
                a, b = read(old), read(new)
                assert np.array_equal(a, b) or a.tobytes() == b.tobytes(), (store, name)
                arrays += 1
    print(f"zarr {zarr.__version__}: {arrays} arrays")


def members(store, archives):
    with zipfile.ZipFile(archives[0]) as archive:
        assert archive.testzip() is None
        found = {name: archive.read(name) for name in archive.namelist()}
        assert len(found) == len(archive.infolist())
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    for folder, _, names in os.walk(store):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                assert found.pop(os.path.relpath(path, store)) == file.read(), path
    assert not found, found.keys()


def ome(store, _):
    root = zarr.create_group(store, zarr_format=3)
    for level, length in enumerate((64, 32)):
        array = root.create_array(f"{level}", shape=(length, length), chunks=(8, 8), shards=(32, 32), dtype="u2")
        array[...] = np.arange(length**2).reshape(length, length)
    labels = root.create_group("labels/cells")
    labels.create_array("0", shape=(5,), chunks=(2,), dtype="i4")[...] = np.arange(5)
    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "yx"]
    datasets = [
        {"path": f"{level}", "coordinateTransformations": [{"type": "scale", "scale": [2.0**level] * 2}]}
        for level in range(2)
    ]
    root.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}


def order(archive, _):
    with zipfile.ZipFile(archive) as opened:
        in_directory = opened.namelist()
        in_file = sorted(opened.infolist(), key=lambda info: info.header_offset)
        assert in_directory == [info.filename for info in in_file]
        print("\n".join(in_directory), opened.comment.decode(), sep="\n")


command, first, *more = sys.argv[1:]
{"values": values, "members": members, "ome": ome, "order": order}[command](first, more)
