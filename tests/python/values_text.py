#!/usr/bin/env python3
"""Compares values.txt of a mount with the values that NumPy and cftime compute from the arrays of a store.

    values_text.py write STORE            writes arrays of all types, and times in all calendars
    values_text.py check MOUNT STORE      compares each values.txt with the array; numbers must read back equal

Exit code 1 after differences.
"""
import datetime
import os
import sys
import warnings

import cftime
import numpy as np
import zarr

from expected import Different, same

warnings.simplefilter("ignore")

RNG = np.random.default_rng(18)
SHAPES = [(), (11,), (4, 5), (3, 2, 4), (2, 3, 2, 2)]
CALENDARS = ["standard", "gregorian", "proleptic_gregorian", "julian", "noleap", "365_day", "all_leap", "366_day", "360_day"]
EPOCHS = ["days since 2000-01-01", "hours since 1582-10-01 06:30", "seconds since 1970-01-01T00:00:00Z",
          "minutes since 1-1-1 00:00:0.0", "milliseconds since 1900-02-28", "microseconds since 2000-03-01"]
WORDS = ["abc", "", "a b", "q\"uote", "tab\t", "\u00e9", "back\\slash", "#x"]


def random(dtype, shape):
    """Returns items with any bits, so that all kinds of floats are among them."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return RNG.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "US":
        words = [w.encode() if dtype.kind == "S" else w for w in WORDS]
        return np.array([words[i % len(words)] for i in range(int(np.prod(shape)))], dtype).reshape(shape)
    return np.frombuffer(RNG.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def write(store):
    root = zarr.open_group(store, "w")
    for dtype in ["|b1", "|i1", "|u1", "<i2", ">u2", "<i4", ">u4", "<i8", ">i8", "<u8", "<f2", ">f2", "<f4", ">f4", "<f8",
                  ">f8", "<c8", ">c16", "|S8", "<U9", ">U9", "|V5"]:
        for shape in SHAPES:
            put(root, f"{dtype[1:]}_{'le' if dtype[0] == '<' else 'be'}_{len(shape)}", random(dtype, shape))
    point = np.dtype([("x", "<f4"), ("n", ">i2", (2,)), ("t", "<M8[s]"), ("w", "|S3")])
    values = np.zeros(5, point)
    values["x"], values["n"], values["t"], values["w"] = np.arange(5) / 3, [[i, -i] for i in range(5)], 10**9, b"w w"
    put(root, "struct", values)
    for unit in ["Y", "M", "W", "D", "h", "m", "s", "25s", "ms", "us", "ns", "ps", "fs", "as"]:
        numbers = RNG.integers(-60, 60, 9) * (10 ** 12 if unit[-2:] in ("us", "ns", "ps", "fs", "as") else 1)
        numbers[4] = np.iinfo("i8").min
        for kind in "Mm":
            put(root, f"{kind}8_{unit}", numbers.astype("<i8").view(f"<{kind}8[{unit}]"))
    for unit in ["days", "nanoseconds"]:
        put(root, f"xarray_{unit}", np.array([1, np.iinfo("i8").min, -3]), units=unit, dtype="timedelta64[ns]")
    for number, calendar in enumerate(CALENDARS):
        for units in EPOCHS:
            scale = {"d": 1, "h": 24, "s": 86400, "m": 1440}[units[0]] * {"mil": 60_000, "mic": 60_000_000}.get(units[:3], 1)
            values = np.sort(RNG.uniform(0, 600_000, 40)) * scale
            put(root, f"cf_{number}_{units[:3]}_i", values.astype("<i8"), units=units, calendar=calendar)
            put(root, f"cf_{number}_{units[:3]}_f", values.round(3), units=units, calendar=calendar, _FillValue=float("nan"))
    put(root, "large", np.zeros(1 << 17 | 1))
    put(root, "most", np.linspace(-1, 1, 1 << 17).reshape(256, 512))


def put(root, name, values, **attributes):
    chunks = tuple(max(1, n // 2 + 1) for n in values.shape)
    root.create_dataset(name, data=values, chunks=chunks, fill_value=None).attrs.update(attributes)


def word(text):
    """Returns a string as values.txt must spell it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    return text if text and not any(c.isspace() or c == '"' for c in text) else f'"{escaped}"'


def words(values):
    """Returns the expected text of each item of a type other than numbers."""
    kind = values.dtype.kind
    if kind == "M":
        return np.datetime_as_string(values)
    if kind in "SU":
        return [word(v.decode() if kind == "S" else str(v)) for v in values.ravel()]
    if kind == "V":
        return [bytes(v).hex() for v in values.ravel()]
    return ["NaT" if np.isnat(v) else str(v.astype("i8")) for v in values.ravel()]


def lines_of(shape):
    """Returns the number of items of each line, 0 for an empty line."""
    if len(shape) < 2:
        return [1] * int(np.prod(shape))
    lines = []
    for place in np.ndindex(shape[:-1]):
        lines += [0] * ((len(place) - 1 - max(np.nonzero(place)[0], default=-1)) if any(place) and not place[-1] else 0)
        lines.append(shape[-1])
    return lines


def compare(name, values, attributes, text):
    same("end", text[-1:], "\n" if values.size else "")
    lines = text.split("\n")[:-1]
    if values.dtype.names:
        wanted = [f"{np.float32(v['x'])!s} {v['n'][0]} {v['n'][1]} {np.datetime_as_string(v['t'])} \"w w\"" for v in values]
        return same("structs", [line.replace("0 0 ", "0.0 0 ", 1) if line.startswith("0 ") else line for line in lines], [w.replace("1.0 ", "1 ", 1) for w in wanted])
    columns = 2 if values.dtype.kind == "c" else 1
    if values.dtype.kind in "SU":
        # compare whole lines, since quoted words contain spaces
        return same("lines", [line for line in lines if line], [" ".join(words(row)) for row in values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)])
    same("items of each line", [len(line.split()) for line in lines], [n * columns for n in lines_of(values.shape)])
    items = text.split()
    if "dtype" in attributes:
        # durations as xarray stores them
        values = values.view(attributes["dtype"])
    elif "units" in attributes:
        found, allowed = [cf(item) for item in items], times(values, attributes)
        return same("times", [item for item, times in zip(found, allowed, strict=True) if item not in times], [])
    if values.dtype.kind in "MmV":
        return same("words", items, list(words(values)))
    if values.dtype.kind == "c":
        part = np.dtype(values.dtype.str.replace("c16", "f8").replace("c8", "f4"))
        return same("parts", np.array(items, part.newbyteorder("=")), values.ravel().view(part))
    found = np.array([int(i) for i in items] if values.dtype.kind in "iub" else items, values.dtype.newbyteorder("="))
    same("numbers", found, values.ravel())


def cf(item):
    return None if item == "NaT" else item + ("" if "." in item else ".000000")


def times(values, attributes):
    """Returns the dates that cftime computes. For floats, which cannot hold microseconds, all near dates are
    allowed."""
    is_exact = values.dtype.kind in "iu"
    found = cftime.num2date(values.astype("f8") if values.dtype.kind == "f" else values, attributes["units"], attributes["calendar"])
    near = [datetime.timedelta(microseconds=n) for n in ([0] if is_exact else range(-16, 17))]
    return [{(d + n).isoformat(timespec="microseconds") for n in near} for d in found]


def check(mount, store):
    root, faults, compared = zarr.open_group(store, "r"), [], 0
    for name, array in root.arrays():
        path = os.path.join(mount, name, "values.txt")
        try:
            if array.nbytes > 1 << 20:
                same("listed", os.path.exists(path), False)
                continue
            with open(path, encoding="utf-8", newline="\n") as f:
                text = f.read()
            same("size", os.stat(path).st_size, len(text.encode()))
            compare(name, array[...], array.attrs.asdict(), text)
            compared += 1
        except Exception as e:
            faults.append(f"  {name}: {type(e).__name__}: {e}")
    print("\n".join([f"values.txt: {compared} compared, {len(faults)} wrong", *faults]))
    sys.exit(bool(faults) or not compared)


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](*sys.argv[2:])
