#!/usr/bin/env python3
"""Writes tests/data/sample.zarr: a month of synthetic climate data, as xarray and zarr-python 2.18 store it.

To write it again, run: . scripts/lib.sh && "$(venv zarr2)" scripts/sample.py
"""
import pathlib
import shutil
import warnings

import numcodecs
import numpy as np
import xarray as xr
import zarr

warnings.simplefilter("ignore")
# threads of blosc store blocks in the order in which they finish, so the output would vary
numcodecs.blosc.use_threads = False

root = pathlib.Path(__file__).resolve().parent.parent
store = root / "tests/data/sample.zarr"
rng = np.random.default_rng(1)

time = np.arange("2026-01-01", "2026-02-01", np.timedelta64(12, "h"), dtype="datetime64[ns]")
lat = np.linspace(75, 30, 37, dtype="f4")
lon = np.linspace(-15, 50, 53, dtype="f4")
latitude, longitude = np.meshgrid(lat, lon, indexing="ij")
axes = {
    "time": ("time", time, {"standard_name": "time", "axis": "T"}),
    "lat": ("lat", lat, {"standard_name": "latitude", "units": "degrees_north", "axis": "Y"}),
    "lon": ("lon", lon, {"standard_name": "longitude", "units": "degrees_east", "axis": "X"}),
}
time_encoding = {"units": "hours since 1900-01-01", "calendar": "gregorian", "dtype": "i4"}

days = np.arange(len(time))[:, None, None] / 2
air = 288 - 0.6 * (latitude - 30) + 6 * np.cos(longitude / 9 + latitude / 14 + days / 3)
air = air + 2 * np.sin(np.pi * 2 * days) + rng.normal(0, 0.02, air.shape)
atmosphere = xr.Dataset(
    {"air_temperature": (("time", "lat", "lon"), air, {
        "standard_name": "air_temperature", "long_name": "air temperature at 2 m", "units": "K",
        "cell_methods": "time: point",
    })},
    coords=axes,
    attrs={"Conventions": "CF-1.10", "title": "Sample of zarrfs: synthetic weather over Europe",
           "source": "scripts/sample.py"},
)
shutil.rmtree(store, ignore_errors=True)
atmosphere.to_zarr(
    store, consolidated=False,
    encoding={
        "air_temperature": {
            "dtype": "<i2", "scale_factor": 0.05, "add_offset": 260.0, "_FillValue": -32768,
            "chunks": (24, 16, 24), "compressor": numcodecs.Blosc("lz4", 5, numcodecs.Blosc.SHUFFLE),
        },
        "time": time_encoding,
    },
)

# Land fills the east, so that some chunks have no sea and are not stored.
sea = (latitude < 36) | (longitude < 10 + 3 * np.sin(latitude / 5))
surface = np.where(sea, 290 - 0.35 * (latitude - 30) + days[::20] / 10 + rng.normal(0, 0.02, (4, 37, 53)), np.nan)
surface = np.round(surface * 32) / 32  # the resolution of a satellite, which compresses well
ocean = xr.Dataset(
    {"sea_surface_temperature": (("time", "lat", "lon"), surface.astype("f4"), {
        "standard_name": "sea_surface_temperature", "units": "K",
    })},
    coords={**axes, "time": ("time", time[::20], axes["time"][2])},
    attrs={"Conventions": "CF-1.10", "title": "Sea surface temperature, missing on land"},
)
ocean.to_zarr(
    store, group="ocean", consolidated=False, write_empty_chunks=False,
    encoding={
        "sea_surface_temperature": {"chunks": (2, 16, 24), "compressor": numcodecs.Zlib(6), "_FillValue": np.nan},
        "time": time_encoding,
    },
)
zarr.consolidate_metadata(str(store))

files = [f for f in store.rglob("*") if f.is_file()]
print(f"{store.relative_to(root)}: {len(files)} files, {sum(f.stat().st_size for f in files)} bytes")
