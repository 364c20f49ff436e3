"""Compares two results of scripts/bench. A row has changed only if the ranges of its samples do not overlap."""
import report

# units in which more is better; fewer seconds and bytes are better
MORE_IS_BETTER = ("IOPS",)
# columns that a change of zarrfs affects: the others show how much the machine has changed
OURS = ("zarrfs", "direct", "zarrfs-128M")


def rows_of(result):
    """Yields (array, row, column, values) for each measured column."""
    for name, array in result["arrays"].items():
        for row, columns in array["rows"].items():
            for column, values in columns.items():
                yield name, row, column, values
    for codec, rows in result.get("shards", {}).items():
        for row, columns in rows.items():
            for column, values in columns.items():
                yield f"shards, {codec}", row, column, values
    for name, array in result.get("series", {}).items():
        for row, columns in array["rows"].items():
            for column, values in columns.items():
                yield f"series, {name}", row, column, values
    for table in ("stores", "growth"):
        for row, columns in result.get(table, {}).get("rows", {}).items():
            for column, values in columns.items():
                yield table, row, column, values


def verdict(row, before, now):
    """Returns `faster`, `slower`, or `within the spread` if the ranges of the samples overlap."""
    if now["min"] <= before["max"] and before["min"] <= now["max"]:
        return "within the spread"
    unit = report.GROWTH[row.split(", ")[1]][0] if row.startswith("grow-") else report.ROWS.get(row, ("", "", None))[1]
    is_better = (now["median"] > before["median"]) == (unit in MORE_IS_BETTER)
    return "faster" if is_better else "slower"


def compared(before, now):
    """Returns a tuple for each row and column of both results: array, row, column, ratio of the medians, verdict."""
    earlier = {(name, row, column): values for name, row, column, values in rows_of(before)}
    lines = []
    for name, row, column, values in rows_of(now):
        old = earlier.get((name, row, column), {})
        if not old.get("median") or not values.get("median"):
            continue
        lines.append((name, row, column, values["median"] / old["median"], verdict(row, old, values)))
    return lines


def print_compared(before, now):
    """Prints the changes of zarrfs, and the median change of the other columns, which zarrfs does not affect."""
    lines = compared(before, now)
    if before["mib"] != now["mib"]:
        print(f"\nnot compared: arrays of {before['mib']} MiB then, of {now['mib']} MiB now")
        return
    print(f"\nCompared with {before['date']}, {before['versions']['commit']}: medians now / then")
    ours = [line for line in lines if line[2].split(",")[0] in OURS]
    report.table(["", "", "", "now / then", ""],
                 [[name, row, column, f"{ratio:.2f}", text] for name, row, column, ratio, text in ours])
    # other versions of the libraries do not measure the machine
    changed = report.PEERS if before["versions"]["peers"] != now["versions"]["peers"] else []
    others = sorted(line[3] for line in lines if line not in ours and line[2].split(",")[0] not in changed)
    if others:
        print(f"other columns, which measure the machine: {others[len(others) // 2]:.2f} (median of {len(others)}, "
              f"{others[0]:.2f} to {others[-1]:.2f})")
