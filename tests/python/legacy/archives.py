#!/usr/bin/env python3
"""Runs commands of the programs of the field on the files of archives and on those of a layout, and compares what they print.

    archives.py ARCHIVE MOUNT    directories with `years`, `days` and `dates`, as `layout.py make` writes them

Differences are printed to standard error; exit code 1 if there are any. The lines of headers are compared without their order,
since a Zarr group has no order of variables, without the history that a program adds, and without the description of a band:
rioxarray writes the name of the array, and the layout its `long_name`.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

YEAR, DAY, DATE = "years/tas_1853.nc", "days/day_20200229.nc4", "dates/rain_20210304.tif"
MFDATASET = """
import hashlib, xarray
all = xarray.open_mfdataset("{}/%s", combine="by_coords", data_vars="minimal", coords="minimal", compat="override")
print({name: (v.dims, v.shape, sorted(v.attrs.items()), hashlib.sha256(str(v.values.tolist()).encode()).hexdigest())
    for name, v in sorted(all.variables.items())}, sorted(all.attrs.items()), all.time.values[[0, -1]])
"""
NETCDF4 = """
import glob, hashlib, netCDF4
for path in sorted(glob.glob("{}/*/*.nc*")):
    with netCDF4.Dataset(path) as file:
        print(path, file.data_model, [(name, v.dtype, v.dimensions, v.shape, hashlib.sha256(v[...].filled(0).tobytes()).hexdigest())
            for name, v in sorted(file.variables.items())])
"""
NCDF4 = """
library(ncdf4)
for (path in sort(Sys.glob("{}/years/*.nc"))) {
    file <- nc_open(path)
    values <- ncvar_get(file, "tas")
    cat(path, dim(values), sum(values, na.rm = TRUE), sum(is.na(values)), ncatt_get(file, "time", "calendar")$value,
        ncatt_get(file, "tas", "units")$value, range(file$dim$time$vals), "\\n")
    nc_close(file)
}
"""
TERRA = """
suppressPackageStartupMessages(library(terra))
for (path in sort(Sys.glob("{}/%s"))) {
    grid <- rast(path%s)
    for (what in c("min", "max", "mean", "notNA")) cat(global(grid, what, na.rm = TRUE)[, 1], "\\n")
    cat(dim(grid), as.vector(ext(grid)), crs(grid, describe = TRUE)$code, format(time(grid)), units(grid), "\\n")
}
"""
OCTAVE = """
pkg load netcdf
files = glob("{}/years/*.nc");
for n = 1:numel(files)
    values = ncread(files{n}, "tas");
    names = sort({ncinfo(files{n}).Variables.Name});
    printf("%s %s %.12g %d %s %s\\n", files{n}, mat2str(size(values)), sum(values(!isnan(values))), sum(isnan(values(:))),
        ncreadatt(files{n}, "time", "units"), strjoin(names, " "));
end
"""

# words of a command, or a shell line if there is one; {} is the directory, OUT a file that the command writes
COMMANDS = [
    f"ncdump -v tas {{}}/{YEAR}",
    f"ncdump -v time_bnds {{}}/{YEAR}",
    f"ncdump -v t2m {{}}/{DAY}",
    f"cdo -s infon {{}}/{YEAR}",
    f"cdo -s sinfon {{}}/{DAY}",
    f"cdo -s griddes {{}}/{YEAR}",
    f"cdo -s showtimestamp {{}}/{DAY}",
    "cdo -s -O mergetime {}/years/*.nc OUT && cdo -s outputtab,date,lon,lat,value -timmean OUT",
    "cdo -s -O mergetime {}/days/*.nc4 OUT && cdo -s outputtab,name,date,value -fldmean -daymean OUT",
    f"cdo -s -O yearmean {{}}/{YEAR} OUT && ncdump OUT",
    f"ncks -H -C -v tas -d time,3,4 {{}}/{YEAR}",
    "nces -O -v tas {}/years/*.nc OUT && ncdump -v tas OUT",
    f"ncwa -O -v t2m -a lat,lon {{}}/{DAY} OUT && ncdump -v t2m OUT",
    f"ncap2 -O -v -s 'anomaly=tas-tas.avg($time)' {{}}/{YEAR} OUT && ncdump -v anomaly OUT",
    f"gdalinfo -checksum NETCDF:{{}}/{YEAR}:tas",
    f"gdalinfo -stats --config GDAL_PAM_ENABLED NO {{}}/{DATE}",
    f"gdal_translate -q -of AAIGrid {{}}/{DATE} OUT && cat OUT",
    f"gdalwarp -q -overwrite -t_srs EPSG:3857 {{}}/{DATE} OUT && gdalinfo -checksum OUT",
    "gdalbuildvrt -q -overwrite -separate OUT {}/dates/*.tif && gdalinfo -checksum OUT",
    ["python", MFDATASET % "years/*.nc"],
    ["python", MFDATASET % "days/*.nc4"],
    ["python", NETCDF4],
    ["Rscript", NCDF4],
    ["Rscript", TERRA % ("years/*.nc", ', "tas"')],
    ["Rscript", TERRA % ("dates/*.tif", "")],
    ["octave", OCTAVE],
]


def printed(command, directory, folder):
    """Returns what a command prints, with the lines of a header in a fixed order."""
    if isinstance(command, str):
        out = f"{folder}/out.nc"
        words = ["bash", "-c", command.replace("{}", directory).replace("OUT", out)]
    else:
        program, text = command
        script = pathlib.Path(folder) / "script"
        script.write_text(text.replace("{}", directory, text.count("{}/")))
        words = [sys.executable if program == "python" else program, str(script)]
        if program == "octave":
            words.insert(1, "--no-gui")
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, text=True)
    text = done.stdout.replace(directory, "DIRECTORY")
    assert done.returncode == 0, f"{words}: {text}"
    text = re.sub(r"\d+\.\d+s|0\.\d+ ?sec|\d+MB", "", text)
    header, separator, data = text.partition("\ndata:")
    added = re.compile(r":(history|NCO|CDO|CDI|nco_openmp_thread_number|history_of_appended_files) =|#(history|NCO|CDO|CDI)=|^  Description = rain$")
    lines = [line for line in header.splitlines() if not added.search(line)]
    return "\n".join(sorted(lines) if separator or "gdalinfo" in command else lines) + separator + data


def main():
    trees = sys.argv[1:3]
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            old, new = (printed(command, tree, folder) for tree in trees)
            name = command if isinstance(command, str) else " ".join([command[0], command[1].split("\n")[1]])
            print(f"{'equal' if old == new else 'DIFFERS'}: {name}", flush=True)
            if old != new:
                differing += 1
                a, b = (pathlib.Path(folder) / each for each in ("old", "new"))
                a.write_text(old)
                b.write_text(new)
                print(subprocess.run(["diff", a, b], stdout=subprocess.PIPE, text=True).stdout[:3000], file=sys.stderr)
    print(f"{len(COMMANDS)} commands, {differing} differ")
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()
