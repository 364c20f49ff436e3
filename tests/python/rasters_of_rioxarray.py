#!/usr/bin/env python3
"""Opens what rioxarray writes by default, with GDAL (rasterio) in a mount.

    rasters_of_rioxarray.py make DIR             writes DIR/rasters.zarr, a group for each kind of raster
    rasters_of_rioxarray.py read MOUNT STORE     compares values, reference systems and transforms

With rioxarray, xarray, zarr and rasterio. rioxarray stores `spatial_ref` and `band` as integers of 64 bits.
"""
import os
import sys
import warnings

import numpy as np
import rasterio
import rioxarray  # noqa: F401  adds the accessor
import xarray

warnings.simplefilter("ignore")
GROUPS = {"utm": ("EPSG:32633", 30.0, 500_000.0, 5_800_000.0), "degrees": ("EPSG:4326", 0.25, 10.0, 55.0)}


def rasters():
    rng = np.random.default_rng(5)
    for name, (crs, step, left, top) in GROUPS.items():
        y, x = top - step * (np.arange(6) + 0.5), left + step * (np.arange(9) + 0.5)
        values = rng.normal(size=(2, 6, 9)).astype("f4")
        bands = xarray.DataArray(values, {"band": [1, 2], "y": y, "x": x}, ["band", "y", "x"], "elevation")
        yield name, bands.rio.write_crs(crs).rio.write_transform()


def make(folder):
    for name, raster in rasters():
        raster.to_dataset().to_zarr(os.path.join(folder, "rasters.zarr"), group=name, mode="w", consolidated=False)


def read(mount, store):
    for name, raster in rasters():
        path = os.path.join(mount, name, "dataset.nc")
        with open(path, "rb") as file:
            assert file.read(4) == b"CDF\x02"
        with rasterio.open(f"netcdf:{path}:elevation") as shown:
            np.testing.assert_array_equal(shown.read(), raster.values)
            assert shown.crs == rasterio.crs.CRS.from_user_input(GROUPS[name][0]), shown.crs
            assert np.allclose(shown.transform, raster.rio.transform()), shown.transform
        with xarray.open_dataset(path) as shown, xarray.open_zarr(store, group=name, consolidated=False) as stored:
            xarray.testing.assert_equal(shown.load(), stored.load())
            assert shown.elevation.rio.crs == stored.elevation.rio.crs, shown.elevation.rio.crs
        print(f"{name}: equal")


if __name__ == "__main__":
    {"make": make, "read": read}[sys.argv[1]](*sys.argv[2:])
