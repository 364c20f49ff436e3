#!/usr/bin/env python3
"""Opens headers and containers with the programs for which they exist, and prints a Markdown table of the comparisons.

    main.py MOUNT DIR [WORD]      (with scripts/requirements/legacy.txt; geo.py has written DIR; only rows that contain WORD)

Differences are printed to standard error; exit code 1 if there are any.
"""
import sys
import warnings

warnings.simplefilter("ignore")

import table  # noqa: E402
from expected import load  # noqa: E402
from table import Group, ROWS  # noqa: E402

import datasets, grids, image_readers, libraries, rasters, readme  # noqa: E401, E402, F401

ORDER = ["data.npy", "data.raw.hdr", "data.vrt", "data.nhdr", "data.mhd", "data.xmf", "README.txt", "data.nii", "data.tif",
         "dataset.nc", "dataset.h5"]


def main():
    mount, directory, *words = sys.argv[1:]
    arrays = load(mount, directory)
    groups = {}
    for array in arrays:
        groups.setdefault(array.group, []).append(array)
    groups = [Group(members) for members in groups.values()]
    print("| file | program | version | compared | result |\n|---|---|---|---|---|")
    rows = [row for row in ROWS if all(word in f"{row.file} {row.program}" for word in words)]
    failed = not rows
    for row in sorted(rows, key=lambda row: ORDER.index(row.file)):
        is_group = row.file.startswith("dataset.")
        count, faults = row.compare(groups if is_group else arrays)
        result = f"{count} {'groups' if is_group else 'arrays'}, all equal" if not faults else f"{len(faults)} of {count} wrong"
        print(f"| `{row.file}` | {row.program} | {row.version} | {row.what} | {result if count else 'NONE'} |", flush=True)
        for fault in faults:
            print(f"{row.file}, {row.program}: {fault}", file=sys.stderr)
        failed |= bool(faults) or not count
    sys.exit(failed)


if __name__ == "__main__":
    main()
