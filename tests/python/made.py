"""Makes arrays and datasets through a mount as programs do by default, where nothing may exist yet, and reads them.

    made.py make|read PATH FORMAT      (with zarr 2.18 or 3)

FORMAT is 2 or 3. zarr 2.18 knows format 2 alone. What is made has no compressor in format 2, since a mount takes the
bytes of its chunks for decoded ones.
"""
import logging
import os
import sys
import warnings

import numpy as np
import xarray as xr
import zarr

warnings.simplefilter("ignore")
logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # zarr 3 leaves failed tasks behind
ZARR3 = int(zarr.__version__.split(".")[0]) >= 3
VALUES = np.arange(35, dtype="<i4").reshape(5, 7)


def dataset():
    return xr.Dataset(
        {"t": (("time", "x"), VALUES.astype("<f4") / 4, {"units": "K"})},
        coords={"time": np.arange(5) * 3, "x": np.linspace(0, 1, 7)},
        attrs={"title": "made"},
    )


def refuse_existing(make):
    """Mode "w-" fails where something exists."""
    try:
        make()
    except (FileExistsError, ValueError) as e:
        assert "exist" in str(e) or "contains" in str(e), e
    else:
        sys.exit("made over what exists")


def make_dataset(path, zarr_format):
    options = {"zarr_format": zarr_format} if ZARR3 else {}
    if zarr_format == 2:
        plain = {"compressors" if ZARR3 else "compressor": None}
        options["encoding"] = {name: plain for name in ("t", "time", "x")}
    dataset().to_zarr(path, **options)


def make(path, zarr_format):
    plain = {"compressor": None} if zarr_format == 2 else {}
    version = {"zarr_format": zarr_format} if ZARR3 else {}
    at = lambda name: os.path.join(path, name)

    make_dataset(at("dataset"), zarr_format)
    refuse_existing(lambda: make_dataset(at("dataset"), zarr_format))

    if zarr_format == 3:
        zarr.save(at("saved"), VALUES)
        zarr.save(at("several"), first=VALUES, second=VALUES[0])
    else:
        zarr.save_array(at("saved"), VALUES, **plain, **version)

    def open_new():
        return zarr.open(at("opened"), mode="w-", shape=VALUES.shape, chunks=(2, 3), dtype="<i4", **plain, **version)

    open_new()[:] = VALUES
    refuse_existing(open_new)
    group = zarr.open_group(at("group"), mode="w-", **version)
    group.attrs["title"] = "made"
    group.create_group("below")


def read(path, zarr_format):
    at = lambda name: os.path.join(path, name)
    with xr.open_zarr(at("dataset")) as found:
        xr.testing.assert_identical(found.load(), dataset())
    for name in ("saved", "opened"):
        found = zarr.open(at(name), mode="r")
        assert found.dtype == VALUES.dtype and np.array_equal(found[...], VALUES), f"{name}: {found[...]}"
    if zarr_format == 3:
        found = zarr.open(at("several"), mode="r")
        assert np.array_equal(found["first"][...], VALUES) and np.array_equal(found["second"][...], VALUES[0])
    group = zarr.open_group(at("group"), mode="r")
    assert dict(group.attrs) == {"title": "made"} and "below" in group
    print(f"zarr {zarr.__version__}: {path} read, format {zarr_format}")


{"make": make, "read": read}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
