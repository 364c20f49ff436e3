"""The programs of NetCDF, NCO, Octave and R on dataset.nc."""
import json
import re
import tempfile

import numpy as np

from expected import Different, same
from headers import is_variable
from table import close, decoded, row, run, version

def netcdf_version():
    said = run("sh", "-c", "ncdump 2>&1 || true")
    return re.search(r"library version (\S+)", said)[1]


def r_version(package):
    return run("Rscript", "-e", f"cat(as.character(packageVersion('{package}')))")


def numeric(group):
    return [a for a in group.arrays if is_variable(a)]


def stored(group, array):
    return group.signed(array, array.values().astype("f8"))


@row("dataset.nc", "ncdump", netcdf_version(), "kind of file, names, dimensions, values, fill values, units")
def ncdump(group):
    kind = run("ncdump", "-k", group.file("dataset.nc")).strip()
    same("kind", kind, "cdf5" if group.is_cdf5() else "64-bit offset")
    text = run("ncdump", "-p", "9,17", group.file("dataset.nc"))
    head, _, data = text.partition("\ndata:\n")
    # a leading digit is escaped by a backslash
    sections = dict(re.findall(r"^ \\?(\S+) =([^;]*);", data, re.M))
    for array in numeric(group):
        declared = re.search(rf"^\t\w+ \\?{re.escape(array.name)}(?:\((.*)\))? ;$", head, re.M)
        if not declared:
            raise ValueError(f"{array.name} is not declared: {head[:300]}")
        if array.is_named() and array.group != "image":
            same(f"{array.name}: dimensions", (declared[1] or "").split(", "), array.names())
        if array.fill() is not None:
            found = re.search(rf"^\t\t{array.name}:_FillValue = (\S+) ;$", head, re.M)[1]
            close(f"{array.name}: fill value", number(found), array.fill(), 8)
        if array.units and array.group != "image":
            same(f"{array.name}: units", f'\t\t{array.name}:units = "{array.units}" ;' in head, True)
        words = [w for w in sections.get(array.name, "").replace(",", " ").split()]
        close(f"{array.name}: values", [array.fill() if w == "_" else number(w) for w in words], stored(group, array), 9)


def number(word):
    """Returns a number with the suffix of its type."""
    return float("nan") if word.startswith("NaN") else float(re.sub(r"(?<=[0-9.])[a-zA-Z]+$", "", word))


def flat(values):
    return [x for v in values for x in flat(v)] if isinstance(values, list) else [values]


@row("dataset.nc", "ncks --json", version("ncks", "--version"), "names, dimensions, values, units")
def nco(group):
    found = json.loads(run("ncks", "--jsn", group.file("dataset.nc")).replace(": nan", ": NaN"))["variables"]
    for array in numeric(group):
        variable = found[array.name]
        if array.is_named() and array.group != "image":
            same(f"{array.name}: dimensions", variable["shape"], array.names())
        values = stored(group, array)
        nothing = float("nan") if array.fill() is None else array.fill()
        close(f"{array.name}: values", [nothing if v is None else v for v in flat(variable.get("data", []))], values)
        if array.units and array.group != "image":
            same(f"{array.name}: units", variable["attributes"]["units"], array.units)


OCTAVE = """pkg load netcdf
function show(name, x)
  printf('%s', name); printf(' %.17g', double(x)); printf('\\n');
end
"""


def lines_of(said):
    """Parses lines of a name and numbers."""
    lines = (line.split() for line in said.splitlines() if line.strip())
    return {name: [float(w) if w != "NA" else float("nan") for w in words] for name, *words in lines}


@row("dataset.nc", "Octave ncread, ncwrite", version("octave", "--version"), "values decoded, dimensions; written in place")
def octave(group):
    path, arrays = group.file("dataset.nc"), numeric(group)
    code = OCTAVE + "".join(f"show('{a.name}', ncread('{path}', '{a.name}'));\n" for a in arrays)
    found = lines_of(run("octave", "--quiet", "--no-gui", "--eval", code))
    for array in arrays:
        close(f"{array.name}: values", found[array.name], group.signed(array, decoded(array)))
    changed = next((a for a in arrays if a.name in ("zonal", "bands", "le_f4")), None)
    if changed:
        values = changed.values()
        try:
            run("octave", "--quiet", "--no-gui", "--eval",
                f"{OCTAVE}x = ncread('{path}', '{changed.name}'); ncwrite('{path}', '{changed.name}', x + 1);")
            same(f"{changed.name}: written", changed.values(), values + 1)
        finally:
            changed.write(values)


def write_with_ncdf4(path, arrays):
    """Changes an array in place with ncdf4 of R, and back."""
    changed = next((a for a in arrays if a.name in ("dem", "rain", "height")), None)
    if changed:
        values = changed.values()
        try:
            run("Rscript", "-e", f"library(ncdf4); nc <- nc_open('{path}', write=TRUE); x <- ncvar_get(nc, '{changed.name}', "
                f"raw_datavals=TRUE); ncvar_put(nc, '{changed.name}', x + 1); nc_close(nc)")
            same(f"{changed.name}: written", changed.values(), values + values.dtype.type(1))
        finally:
            changed.write(values)


@row("dataset.nc", "R ncdf4", r_version("ncdf4"), "values, dimensions; written in place",
     lambda group: not group.is_cdf5())
def r(group):
    path, arrays = group.file("dataset.nc"), numeric(group)
    with tempfile.NamedTemporaryFile("w", suffix=".R") as script:
        script.write(f"library(ncdf4); nc <- nc_open('{path}')\n")
        for a in arrays:
            script.write(f"x <- ncvar_get(nc, '{a.name}', raw_datavals=TRUE)\n"
                         f"cat('{a.name}', sprintf('%.17g', as.numeric(x)), '\\n')\n")
        script.flush()
        found = lines_of(run("Rscript", script.name))
    for array in arrays:
        close(f"{array.name}: values", found[array.name], stored(group, array), 9)
    write_with_ncdf4(path, arrays)


def in_hdf5(group):
    """Returns the arrays whose values HDF5 has as numbers."""
    return [a for a in group.arrays if a.dtype.kind in "iuf" and a.dtype.itemsize < 16]


def exact(array, found):
    """Compares bits. Half floats are floats in the file."""
    want = array.values()
    want = want.astype("f4") if array.dtype.str[1:] == "f2" else want
    if found != want.astype(want.dtype.newbyteorder("<")).tobytes():
        raise Different(f"{array.name}: {found[:16].hex()} instead of {want.ravel()[:4]}")


@row("dataset.h5", "h5dump", version("h5dump", "--version"), "values, bit for bit")
def h5dump(group):
    with tempfile.NamedTemporaryFile() as out:
        for array in (a for a in in_hdf5(group) if np.prod(a.shape)):
            run("h5dump", "-d", f"/{array.name}", "-b", "LE", "-o", out.name, group.file("dataset.h5"))
            with open(out.name, "rb") as file:
                exact(array, file.read())


@row("dataset.h5", "R rhdf5, ncdf4", r_version("rhdf5"), "values; ncdf4: written in place")
def r_hdf5(group):
    path, arrays = group.file("dataset.h5"), [a for a in in_hdf5(group) if np.prod(a.shape)]
    with tempfile.NamedTemporaryFile("w", suffix=".R") as script:
        # rhdf5 shows integers of 64 bits as doubles
        script.write("library(rhdf5)\n" + "".join(
            f"x <- h5read('{path}', '{a.name}', bit64conversion='double')\n"
            f"cat('{a.name}', sprintf('%.17g', as.numeric(x)), '\\n')\n" for a in arrays))
        script.flush()
        found = lines_of(run("Rscript", script.name))
    for array in arrays:
        close(f"{array.name}: values", found[array.name], array.values().astype("f8"), 9)
    write_with_ncdf4(path, arrays)


@row("dataset.h5", "Octave load", version("octave", "--version"), "values")
def octave_hdf5(group):
    path, arrays = group.file("dataset.h5"), [a for a in in_hdf5(group) if np.prod(a.shape) and a.name.isidentifier()]
    # the names of the whole file include those of types that Octave does not load
    code = OCTAVE + "".join(f"x = load('{path}', '{a.name}'); show('{a.name}', x.{a.name});\n" for a in arrays)
    found = lines_of(run("octave", "--quiet", "--no-gui", "--eval", code))
    for array in arrays:
        close(f"{array.name}: values", found[array.name], array.values().astype("f8"))
