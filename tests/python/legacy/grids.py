"""GrADS and CDO on dataset.nc."""
import os
import re
import tempfile

import numpy as np

from expected import same
from table import close, decoded, row, run, version

GRADS = version("grads", "-h")
CDO = version("cdo", "--version")
MISSING = -9.99e33


def descending(array):
    """Whether the latitudes decrease, with or without equal steps."""
    latitudes = len(array.shape) > 1 and array.coordinates(len(array.shape) - 2)
    return bool(latitudes) and latitudes[-1] < latitudes[0]


def grads_values(path, name, sizes):
    """Returns the values that GrADS displays by member, time and level, with rows from the south."""
    *planes, rows, columns = sizes
    with tempfile.TemporaryDirectory() as folder:
        out, script = os.path.join(folder, "out"), os.path.join(folder, "all.gs")
        lines = [f"'sdfopen {path}'", "if (rc != 0); say result; 'quit'; endif", f"'set undef {MISSING}'",
                 f"'set x 1 {columns}'", f"'set y 1 {rows}'", "'set gxout fwrite'", f"'set fwrite -le -st {out}'"]
        for place in np.ndindex(*planes):
            lines += [f"'set {axis} {n + 1}'" for axis, n in zip("etz", place)] + [f"'d {name}'"]
        lines += ["'disable fwrite'", "'set x 1'", f"'set x 1 {columns}'", "'q dims'", "say result", "'quit'"]
        with open(script, "w") as f:
            f.write("\n".join(lines) + "\n")
        said = run("grads", "-blcx", f"run {script}")
        if not os.path.exists(out):
            raise ValueError(" ".join(said.split())[-300:])
        values = np.fromfile(out, "<f4").astype("f8").reshape(sizes)
        values[np.isclose(values, MISSING, rtol=1e-5)] = np.nan
        return values, said


def dims(said):
    """Returns the first and last longitude and latitude that `q dims` prints."""
    found = re.findall(r"(Lon|Lat) = (\S+) to (\S+)", said)
    return {name: (float(first), float(last)) for name, first, last in found}


def same_corners(array, said):
    latitudes, longitudes = (array.coordinates(n) for n in (len(array.shape) - 2, len(array.shape) - 1))
    found = dims(said)
    close("longitudes", found["Lon"], [longitudes[0], longitudes[-1]], 4)
    close("latitudes", found["Lat"], sorted([latitudes[0], latitudes[-1]]), 4)


def on_a_globe(array):
    return array.names()[-2:] == ["lat", "lon"]


def globes(group):
    return [a for a in group.arrays if len(a.shape) > 1 and on_a_globe(a)]


@row("dataset.nc", "GrADS sdfopen", GRADS, "values, longitudes, latitudes", lambda group: bool(globes(group)))
def grads_netcdf(group):
    for array in globes(group):
        sizes = [1] * 5
        for axis, n in zip(array.axes, array.shape):
            sizes[["", "time", "lev", "lat", "lon"].index(axis["name"])] = n
        found, said = grads_values(group.file("dataset.nc"), array.name, sizes)
        values = group.signed(array, decoded(array))
        close(f"{array.name}: values", found, values[..., ::-1, :] if descending(array) else values)
        same_corners(array, said)


def cdo_numbers(operator, group, name):
    said = run("cdo", "-s", operator, "-setmissval,-9e33", f"-selname,{name}", group.file("dataset.nc"))
    values = np.array([float(word) for word in said.split()])
    values[values < -8e33] = np.nan
    return values


@row("dataset.nc", "CDO showname, outputf, griddes", CDO, "names, values, coordinates", lambda group: bool(globes(group)))
def cdo(group):
    names = run("cdo", "-s", "showname", group.file("dataset.nc")).split()
    for array in globes(group):
        same(f"{array.name} is shown", array.name in names, True)
        close(f"{array.name}: values", cdo_numbers("outputf,%.9g,1", group, array.name), decoded(array))
        grid = run("cdo", "-s", "griddes", f"-selname,{array.name}", group.file("dataset.nc"))
        found = dict(re.findall(r"^(\w+) += +(\S+)", grid, re.M))
        same(f"{array.name}: size", [int(found["ysize"]), int(found["xsize"])], list(array.shape[-2:]))
        if array.geotransform:
            same(f"{array.name}: grid", [float(found[k]) for k in ("xfirst", "xinc", "yfirst", "yinc")],
                 [array.origin()[0], array.steps()[0], array.origin()[1], array.steps()[1]])
        else:
            values = re.search(r"^yvals += +([^a-z]*)", grid, re.M)[1].split()
            close(f"{array.name}: latitudes", [float(v) for v in values], array.coordinates(len(array.shape) - 2), 4)
