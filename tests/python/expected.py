"""The values, coordinates and attributes that every program must find in the arrays of geo.py."""
import json
import os

import numpy as np
import zarr

UNTOLD = {"axes": [], "geotransform": None, "epsg": None, "nodata": None, "scale": None, "offset": None,
          "units": None, "long_name": None}
MAX_SHOWN = 300


class Array:
    """An array, its expected properties and the paths of its files."""

    def __init__(self, mount, directory, entry):
        self.__dict__.update(UNTOLD | entry)
        self.has_metadata = "axes" in entry
        self.axes = self.axes or [{"name": None}] * len(self.shape)
        self.group, self.name = os.path.split(self.key)
        self.path = os.path.join(mount, self.key)
        self.stored = os.path.join(directory, "geo.zarr", self.key)
        self.dtype = np.dtype(self.dtype)

    def stored_values(self):
        """Returns the values as zarr-python reads them."""
        return zarr.open_array(self.stored, mode="r")[...]

    def values(self):
        """Returns the values as zarr-python reads them, with the sign that an attribute states."""
        values = self.stored_values()
        return values.view(self.dtype) if (values.dtype.kind, self.dtype.kind) in [("i", "u"), ("u", "i")] else values

    def write(self, values):
        zarr.open_array(self.stored, mode="r+")[...] = values

    def numbers(self):
        """Returns the values for programs without a boolean type."""
        values = self.values()
        return values.astype("u1") if values.dtype.kind == "b" else values

    def file(self, name):
        return os.path.join(self.path, name)

    def has(self, name):
        return os.path.exists(self.file(name))

    def fill(self):
        """Returns the value of missing items, rounded to the dtype of the array, or None."""
        return None if self.nodata is None else float(self.dtype.type(self.nodata))

    def is_named(self):
        """Whether the names of the axes are known."""
        return self.has_metadata and len(self.shape) > 0

    def is_fill(self, value):
        """Whether a value is that of missing items, in the dtype of the array: 1e20 is not exact in 4 bytes."""
        wanted = self.fill()
        return value is None and wanted is None or None not in (value, wanted) and str(self.dtype.type(value)) == str(self.dtype.type(wanted))

    def names(self):
        return [axis["name"] for axis in self.axes]

    def is_regular(self):
        """Whether any axis has equal steps."""
        return any("step" in axis for axis in self.axes)

    def steps(self):
        """Returns the steps along the axes, the fastest first. An unknown step is 1."""
        return [float(axis.get("step", 1)) for axis in reversed(self.axes)]

    def origin(self):
        """Returns the first coordinate of each axis, the fastest first. An unknown one is 0."""
        return [float(axis.get("first", 0)) for axis in reversed(self.axes)]

    def coordinates(self, n):
        """Returns the coordinates along axis `n`, or None if they are unknown."""
        axis, count = self.axes[n], self.shape[n]
        return axis.get("values") or ([axis["first"] + axis["step"] * i for i in range(count)] if "step" in axis else None)

    def labels(self):
        """Yields for every plane the name and coordinate of each leading axis."""
        leading = range(len(self.shape) - 2)
        for place in np.ndindex(*(self.shape[n] for n in leading)):
            coordinates = [self.coordinates(n) for n in leading]
            yield [(self.axes[n]["name"], c and c[i]) for n, i, c in zip(leading, place, coordinates)]


class Different(Exception):
    """Raised when a value differs from the expected one."""


def same(what, got, want):
    """Checks values and shape for equality. Floats in lists may differ by a relative error of 1e-12."""
    if isinstance(want, np.ndarray):
        return same_arrays(what, np.asarray(got), want)
    if isinstance(want, (list, tuple)) and any(isinstance(x, float) for x in want):
        equal = len(got) == len(want) and np.allclose(got, want, rtol=1e-12, atol=1e-12, equal_nan=True)
    elif isinstance(want, float):
        equal = got is not None and bool(np.isclose(got, want, rtol=1e-12, atol=0, equal_nan=True))
    else:
        equal = got == want
    if not equal:
        raise Different(f"{what}: {repr(got)[:MAX_SHOWN]} instead of {repr(want)[:MAX_SHOWN]}")


def same_arrays(what, got, want):
    if got.shape != want.shape:
        raise Different(f"{what}: shape {got.shape} instead of {want.shape}")
    equal = (got == want) | ((got != got) & (want != want))
    if not equal.all():
        n = int(np.argmin(equal))
        raise Different(f"{what}: {(~equal).sum()} of {equal.size} differ, the first is item {n}: "
                        f"{got.ravel()[n]} instead of {want.ravel()[n]}")


def planes(values):
    """Returns the values by bands, lines and samples, as GDAL orders them."""
    lines, samples = ([1, 1] + list(values.shape))[-2:]
    return values.reshape(-1, lines, samples)


def load(mount, directory):
    """Returns all arrays of the store of geo.py, with the paths of their files in a mount."""
    with open(os.path.join(directory, "expected.json")) as f:
        return [Array(mount, directory, entry) for entry in json.load(f)]
