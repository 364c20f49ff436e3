"""Makes archives of files and the stores that they become, and compares the files of a layout with them.

    layout.py make FOLDER [COUNT...]       files of years, days and dates (8, 5 and 6), and a Zarr v2 store of each
    layout.py shard STORE COPY             the same store in Zarr v3, with shards
    layout.py compare FOLDER MOUNT NAME    the files of FOLDER/NAME and those in the mount
    layout.py write MOUNT STORE            values at random through files of years, compared with the store
    layout.py append STORE                 a year more

`make`, `compare` and `write` need xarray, netCDF4 and rioxarray; `shard` needs zarr 3.
"""
import pathlib
import sys
import warnings

import numpy as np
import xarray as xr
import zarr

warnings.simplefilter("ignore")
YEARS = range(1850, 1858)
LAT = np.linspace(-60, 60, 5)
LON = np.arange(8) * 45.0
# the middle and the ends of the months of a year without a leap day
ENDS = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31.0])


def bounds(middle, half):
    return np.stack([middle - half, middle + half], 1)


def year(number):
    """A file as CMIP has them: bounds, a calendar without leap days, packed values, a scalar coordinate."""
    ends = ENDS + (number - 1850) * 365
    random = np.random.default_rng(number)
    values = random.integers(-3000, 3000, (12, len(LAT), len(LON))).astype("i2")
    values[random.random(values.shape) < 0.05] = -32768
    names = ("time", "lat", "lon")
    packed = {"scale_factor": 0.01, "add_offset": 270.0, "_FillValue": np.int16(-32768), "missing_value": np.int16(-32768)}
    return xr.Dataset(
        {
            "tas": (names, values, {"units": "K", "coordinates": "height", "cell_methods": "time: mean", **packed}),
            "time_bnds": (("time", "bnds"), np.stack([ends[:-1], ends[1:]], 1)),
            "lat_bnds": (("lat", "bnds"), bounds(LAT, 15)),
            "height": ((), 2.0, {"units": "m", "positive": "up"}),
        },
        coords={
            "time": ("time", (ends[:-1] + ends[1:]) / 2, {"units": "days since 1850-01-01", "calendar": "noleap", "bounds": "time_bnds"}),
            "lat": ("lat", LAT, {"units": "degrees_north", "bounds": "lat_bnds"}),
            "lon": ("lon", LON, {"units": "degrees_east"}),
        },
        attrs={"Conventions": "CF-1.7", "source_id": "TEST"},
    )


def day(number):
    """A file of several variables, with times in the standard calendar around a leap day."""
    random = np.random.default_rng(number)
    names = ("time", "lat", "lon")
    return xr.Dataset(
        {name: (names, random.random((4, len(LAT), len(LON))).astype("f4"), {"units": "1"}) for name in ("pr", "t2m")},
        coords={
            "time": ("time", (np.arange(4) * 6 + 24 * number).astype("i4"), {"units": "hours since 2020-02-27", "calendar": "standard"}),
            "lat": ("lat", LAT, {"units": "degrees_north"}),
            "lon": ("lon", LON, {"units": "degrees_east"}),
        },
    )


def plain(dataset):
    """Makes xarray store no fill values of its own."""
    for variable in dataset.variables.values():
        if "_FillValue" not in variable.attrs:
            variable.encoding["_FillValue"] = None
    return dataset


def join(parts):
    return xr.concat(parts, "time", data_vars="minimal", coords="minimal", compat="override")


def chunked(dataset, sharded=False):
    """Makes xarray store chunks of seven times, and the times themselves in one."""
    times = dataset.sizes["time"]
    for name, variable in dataset.variables.items():
        if variable.dims[:1] == ("time",):
            rows, rest = times if name == "time" else 7, variable.shape[1:]
            variable.encoding["chunks"] = (rows, *rest)
            if sharded:
                variable.encoding["shards"] = (-(-times // rows) * rows, *rest)
    return dataset


def make(folder, *counts):
    import rioxarray  # noqa: F401

    folder = pathlib.Path(folder)
    year_count, day_count, date_count = map(int, counts or (len(YEARS), 5, 6))
    for name in ("years", "days", "dates"):
        (folder / name).mkdir()
    years = [plain(year(YEARS[0] + number)) for number in range(year_count)]
    for number, dataset in enumerate(years, YEARS[0]):
        dataset.to_netcdf(folder / f"years/tas_{number}.nc", format="NETCDF3_64BIT")
    days = [plain(day(number)) for number in range(day_count)]
    for number, dataset in enumerate(days):
        date = np.datetime64("2020-02-27") + number
        dataset.to_netcdf(folder / f"days/day_{str(date).replace('-', '')}.nc4", format="NETCDF4")
    dates = []
    for number in range(date_count):
        values = np.random.default_rng(number).random((1, 6, 9)).astype("f4")
        rain = xr.DataArray(values, dims=("time", "y", "x"), name="rain")
        rain = rain.assign_coords(
            time=("time", [number * 3], {"units": "days since 2021-03-01"}), y=50 - 0.25 * np.arange(6), x=5 + 0.25 * np.arange(9)
        )
        rain = rain.rio.write_crs("EPSG:4326").rio.write_nodata(-9999.0)
        date = np.datetime64("2021-03-01") + number * 3
        rain.isel(time=0).rio.to_raster(folder / f"dates/rain_{str(date).replace('-', '')}.tif")
        dates.append(rain.to_dataset())
    for name, parts in (("years", years), ("days", days), ("dates", dates)):
        dataset = join(parts) if name == "dates" else plain(join(parts))
        chunked(dataset).to_zarr(folder / f"{name}.zarr", mode="w")


def shard(store, copy):
    dataset = xr.open_zarr(store, decode_cf=False)
    for variable in dataset.variables.values():
        variable.encoding = {"_FillValue": None} if "_FillValue" not in variable.attrs else {}
    chunked(dataset.load(), sharded=True).to_zarr(copy, zarr_format=3)


def described(dataset):
    """What a program can ask netCDF of a file, without the order of names."""
    variables = {
        name: (v.dtype, v.dimensions, {key: np.asarray(v.getncattr(key)).tolist() for key in sorted(v.ncattrs())}, v[...].tobytes())
        for name, v in sorted(dataset.variables.items())
    }
    lengths = {name: len(dimension) for name, dimension in sorted(dataset.dimensions.items())}
    return lengths, variables, {name: dataset.getncattr(name) for name in sorted(dataset.ncattrs())}


def opened(path):
    import netCDF4

    dataset = netCDF4.Dataset(path)
    dataset.set_auto_maskandscale(False)
    return dataset


def compare(folder, mount, name):
    expected = sorted(path.name for path in (pathlib.Path(folder) / name).iterdir())
    found = sorted(path.name for path in (pathlib.Path(mount) / name).iterdir())
    assert found == expected, (found, expected)
    for file in expected:
        old, new = pathlib.Path(folder) / name / file, pathlib.Path(mount) / name / file
        if file.endswith(".tif"):
            import rasterio

            with rasterio.open(old) as a, rasterio.open(new) as b:
                assert (a.read() == b.read()).all(), file
                for fact in ("crs", "transform", "nodata", "dtypes", "shape"):
                    assert getattr(a, fact) == getattr(b, fact), (file, fact)
            continue
        with opened(old) as a, opened(new) as b:
            assert described(a) == described(b), file
        with xr.open_dataset(old) as a, xr.open_dataset(new) as b:
            xr.testing.assert_identical(a, b)


def write(mount, store):
    import netCDF4

    random = np.random.default_rng(3)
    expected = zarr.open(store, mode="r")["tas"][...]
    for _ in range(20):
        number = int(random.integers(len(YEARS)))
        with netCDF4.Dataset(pathlib.Path(mount) / f"years/tas_{YEARS[number]}.nc", "r+") as dataset:
            dataset.set_auto_maskandscale(False)
            for _ in range(50):
                month, row, column = (int(random.integers(n)) for n in (12, len(LAT), len(LON)))
                value = int(random.integers(-3000, 3000))
                dataset["tas"][month, row, column] = value
                expected[number * 12 + month, row, column] = value
    found = zarr.open(store, mode="r")["tas"][...]
    assert (found == expected).all(), np.argwhere(found != expected)


def digest(days):
    """Prints the SHA-256 of the temperatures of all files in the order of their names, in C order and little-endian."""
    import hashlib

    total = hashlib.sha256()
    for path in sorted(pathlib.Path(days).iterdir()):
        with opened(path) as dataset:
            total.update(dataset["temperature"][:].astype("<f4").tobytes())
    print(total.hexdigest())


def append(store):
    more = xr.decode_cf(year(YEARS[-1] + 1))[["tas", "time_bnds"]].drop_vars(["lat", "lon", "height"])
    for variable in more.variables.values():
        variable.encoding.clear()
        variable.attrs.clear()
    more.to_zarr(store, append_dim="time")


if __name__ == "__main__":
    verbs = {f.__name__: f for f in (make, shard, compare, write, digest, append)}
    verbs[sys.argv[1]](*sys.argv[2:])
