"""Creates ENVI files with GDAL in place of the `data.raw` of a mounted array and of its views, and compares the store.

    created_by_gdal.py make STORE
    created_by_gdal.py write MOUNT STORE      (with zarr 2.18 and rasterio)
"""
import os
import sys
import warnings

import numpy as np
import rasterio
import zarr

warnings.simplefilter("ignore")
SHAPE = (4, 6, 8)


def make(store):
    array = zarr.open_group(store, mode="w").create_dataset("a", shape=SHAPE, chunks=(2, 3, 8), dtype="<i2", fill_value=-1)
    array[...] = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    array.attrs.update(scale_factor=0.5, add_offset=1.0)


def create(path, values):
    bands, height, width = values.shape
    with rasterio.open(path, "w", driver="ENVI", count=bands, height=height, width=width, dtype=values.dtype) as file:
        file.write(values, range(1, bands + 1))


def write(mount, store):
    def compare(wanted):
        found = zarr.open_array(os.path.join(store, "a"), mode="r")
        np.testing.assert_array_equal(found[...], wanted)

    values = np.arange(np.prod(SHAPE), dtype="<i2").reshape(SHAPE) + 1000
    create(os.path.join(mount, "a/data.raw"), values)
    compare(values)
    # fewer rows leave the array its shape
    create(os.path.join(mount, "a/data.raw"), values[:3] + 1)
    assert zarr.open_array(os.path.join(store, "a"), mode="r").shape == SHAPE
    compare(np.concatenate([values[:3] + 1, zarr.open_array(os.path.join(store, "a"), mode="r")[3:]]))
    create(os.path.join(mount, "a/data.raw"), values)

    create(os.path.join(mount, "a.unpacked/data.raw"), values * 2.0)
    values = (values * 2 - 1) * 2
    compare(values)
    create(os.path.join(mount, "a.slices/1/data.raw"), np.full((1, *SHAPE[1:]), 7, "<i2"))
    values[1] = 7
    compare(values)
    # the header of a view is the mount's own
    for view in "a.unpacked", "a.slices/1":
        assert "data.hdr" not in os.listdir(os.path.join(mount, view))
        with rasterio.open(os.path.join(mount, view, "data.raw")) as file:
            assert (file.height, file.width) == SHAPE[1:], file.shape
    # NumPy truncates and writes, too
    (values * 0 + 5).tofile(os.path.join(mount, "a/data.raw"))
    compare(values * 0 + 5)
    assert not [name for name in os.listdir(store) if name.startswith("a.")], os.listdir(store)


if __name__ == "__main__":
    {"make": make, "write": write}[sys.argv[1]](*sys.argv[2:])
