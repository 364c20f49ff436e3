"""Tables and targets. They depend only on the result."""
import functools
import statistics

import sharded

PEERS = ["zarr2", "zarr3", "zarr3-fused", "zarrs", "tensorstore"]
COLUMNS = ["zarrfs", "direct", "null", "null-direct", "plain", "directory", "link", *PEERS]
FAST_CODECS = ("blosc", "zlib", "zstd", None)

# row: title, unit, and the row of the libraries with which zarrfs is compared
ROWS = {
    "cat": ("cold cat", "GB/s", "memory"),
    "dd": ("cold dd bs=1M", "GB/s", None),
    "dd-cpu": ("CPU of it", "s/GiB", None),
    "warm": ("warm cat", "GB/s", None),
    "memory": ("peers: into memory", "GB/s", None),
    "file": ("peers: to a raw file", "GB/s", None),
    "plane": ("one plane", "ms", "plane"),
    "sum": ("mmap sum", "GB/s", None),
    "parallel": ("4 readers, cold", "GB/s", None),
    "crowd": ("64 readers of a row of chunks", "ms", "crowd"),
    "crowd-cpu": ("CPU of them", "ms", None),
    "latency": ("cold 4 KiB, median", "us", "latency"),
    "random-1": ("cold random, 1 job", "IOPS", None),
    "random-4": ("cold random, 4 jobs", "IOPS", None),
    "random-warm-1": ("warm random, 1 job", "IOPS", None),
    "random-warm-4": ("warm random, 4 jobs", "IOPS", None),
    "cpu": ("CPU of cold cat", "s/GiB", None),
    "peak": ("peak memory", "MiB", None),
    "write": ("dd into no chunk, fsync", "GB/s", "store-synced"),
    "overwrite": ("dd over all, fsync", "GB/s", "store-synced"),
    "store": ("peers: from memory", "GB/s", None),
    "store-synced": ("peers: and syncfs", "GB/s", None),
    "write-ext4": ("the same on journaled ext4", "GB/s", "write-ext4"),
    "write-ext4-commits": ("commits of its journal", "", None),
    "write-xfs": ("the same on XFS", "GB/s", "write-xfs"),
    "remote": ("cold cat over a link", "GB/s", "remote"),
    "remote-requests": ("requests per chunk", "", None),
    "remote-cpu": ("CPU of it", "s/GiB", None),
    "zip": ("cold cat of a zip file", "GB/s", None),
    "update": ("4 bytes, fsync, median", "us", None),
    "random-write": ("random writes, fsync", "IOPS", None),
    "write-cpu": ("CPU of dd into no chunk", "s/GiB", None),
    "overwrite-cpu": ("CPU of dd over all", "s/GiB", None),
    "write-peak": ("peak memory, writing", "MiB", None),
}
# rows of the libraries, and the row of zarrfs to compare with: cat has passed the bytes to another program
OURS = {"file": "cat", "store": "write", "store-synced": "write"}
# of each point of a series: title and unit
SERIES = {"seconds": ("a point", "ms"), "cpu": ("CPU of the reader", "ms"), "daemon_cpu": ("CPU of the daemon", "ms"),
         "bytes": ("from the server", "KiB")}
# unit of what is measured of growth, and factor from the unit of the result
GROWTH = {"ls -l": ("ms", 1e3), "du": ("ms", 1e3), "first byte": ("ms", 1e3), "mount": ("ms", 1e3),
         "peak memory": ("MiB", 2**-20), "reads": ("IOPS", 1), "CPU of a read": ("us", 1e6),
         "CPU of the daemon for a read": ("us", 1e6)}
# rows without ratios, which would not be comparable
ALONE = ("cpu", "crowd-cpu", "dd-cpu", "peak", "write-cpu", "overwrite-cpu", "write-peak", "remote-cpu", "remote-requests",
         "write-ext4-commits")


def median(rows, row, column):
    return rows.get(row, {}).get(column, {}).get("median")


def most(rows, row):
    """Returns the maximum of zarrfs over all rounds."""
    return rows.get(row, {}).get("zarrfs", {}).get("max")


def best_peer(rows, row):
    """Returns the best median of the other libraries, and the library."""
    found = [(median(rows, row, p), p) for p in PEERS if median(rows, row, p) is not None]
    return min(found, default=(None, None))


def shown(value, unit, size):
    if value is None:
        return ""
    scale = {"GB/s": lambda: f"{size / value / 1e9:.2f}", "ms": lambda: f"{value * 1e3:.1f}",
             "s/GiB": lambda: f"{value / size * 2**30:.2f}", "us": lambda: f"{value * 1e6:.0f}", "IOPS": lambda: f"{value:.0f}",
             "MiB": lambda: f"{value / 2**20:.0f}", "KiB": lambda: f"{value / 2**10:.0f}", "": lambda: f"{value:.2f}"}
    return scale[unit]()


def spread(rows, row, unit, size):
    """Returns the range of zarrfs over all rounds, the lower number first."""
    values = rows.get(row, {}).get("zarrfs", {})
    if "min" not in values or len(values["samples"]) < 2:
        return ""
    return "-".join(sorted((shown(values["min"], unit, size), shown(values["max"], unit, size)), key=float))


def times(ours, theirs, unit):
    """Returns how many times as fast `ours` is as `theirs`."""
    if not ours or not theirs:
        return None
    return ours / theirs if unit == "IOPS" else theirs / ours


def bounds(array, cores):
    """Returns lower bounds for the seconds of reading and writing the array, from measurements of this machine."""
    rows = array["rows"]
    return {**read_bounds(rows, cores), **write_bounds(rows, cores), **remote_bounds(rows, cores)}


def read_bounds(rows, cores):
    """Returns the bounds of a cold sequential read, cached and direct."""
    codec = [median(rows, "codec", c) for c in ("zarrfs", "numcodecs")]
    if None in codec:
        return {}
    # results of earlier versions have no copy
    copy = median(rows, "copy", "zarrfs") or 0
    found = {"codec_zarrfs": codec[0], "codec_numcodecs": codec[1], "copy": copy}
    for ours, null in (("zarrfs", "null"), ("direct", "null-direct")):
        if (seconds := median(rows, "cat", null)) is not None:
            found[ours] = max(seconds, (min(codec) + copy + median(rows, "cpu", null)) / cores)
    return found


def write_bounds(rows, cores):
    """Returns the bounds of dd and fsync into an array without chunks and over a full one."""
    codec = [median(rows, "encode", c) for c in ("zarrfs", "numcodecs")]
    if None in codec:
        return {}
    files = median(rows, "write-files", "plain")
    found = {"encode_zarrfs": codec[0], "encode_numcodecs": codec[1], "write_files": files}
    for row in ("write", "overwrite"):
        if (seconds := median(rows, row, "null")) is not None:
            work = min(codec) + median(rows, f"{row}-cpu", "null") + files
            found[row] = max(seconds, work / cores)
    return found


def remote_bounds(rows, cores):
    """Returns the bound of a cold sequential read over a network. Server and network also use the cores."""
    link, null = median(rows, "remote", "link"), median(rows, "remote-null", "null")
    if None in (link, null):
        return {}
    decoding = median(rows, "remote-codec", "zarrfs") + median(rows, "remote-cpu", "null")
    return {"remote": max(link, null, (decoding + median(rows, "remote-cpu", "link")) / cores), "remote_link": link,
            "remote_decoding": max(null, decoding / cores)}


def table(head, lines):
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    for line in [head, *lines]:
        cells = (f"{v:{'>' if i else '<'}{w}}" for i, (v, w) in enumerate(zip(line, widths, strict=True)))
        print("  ".join(cells).rstrip())


def print_array(name, array):
    rows, size = array["rows"], array["bytes"]
    print(f"\n{name}: {size / 2**20:.0f} MiB, stored {array['stored'] / 2**20:.0f} MiB; {array['dtype']}, shape "
          f"{array['shape']}, chunks {array['chunks']} of {array['chunk_bytes'] / 2**20:g} MiB, "
          f"order {array['order']}, {array['codec'] or 'uncompressed'}")
    columns = [c for c in COLUMNS if any(c in row for row in rows.values())]
    lines = []
    for row, (title, unit, rival) in ROWS.items():
        if row not in rows:
            continue
        ours = median(rows, row, "zarrfs")
        ratios = [times(ours, median(rows, row, c), unit) for c in ("null", "plain")]
        ratios.append(times(ours, best_peer(rows, rival)[0], unit) if rival else None)
        if row in OURS:
            ratios[2] = times(median(rows, OURS[row], "zarrfs"), best_peer(rows, row)[0], unit)
        if row in ALONE:
            ratios = [None] * 3
        cells = ["fails" if "error" in rows[row].get(c, {}) else shown(median(rows, row, c), unit, size)
                 for c in columns]
        lines.append([title, unit, *cells, *(f"{r:.2f}" if r else "" for r in ratios), spread(rows, row, unit, size)])
    table(["", "", *columns, "x null", "x plain", "x best peer", "zarrfs from-to"], lines)
    if "zarrfs" in array["bound"]:
        b = array["bound"]
        kinds = "; ".join(f"{c} {b[c]:.3f} s = {size / b[c] / 1e9:.2f} GB/s" for c in ("zarrfs", "direct") if c in b)
        print(f"bound of a cold cat: {kinds} (decoding in one thread: zarrfs {b['codec_zarrfs']:.3f} s, numcodecs "
              f"{b['codec_numcodecs']:.3f} s; reading the encoded bytes {b['copy']:.3f} s)")
    if "write" in array["bound"]:
        b = array["bound"]
        kinds = "; ".join(f"{row} {b[row]:.3f} s = {size / b[row] / 1e9:.2f} GB/s" for row in ("write", "overwrite")
                          if row in b)
        print(f"bound of dd and fsync: {kinds} (encoding in one thread: zarrfs {b['encode_zarrfs']:.3f} s, numcodecs "
              f"{b['encode_numcodecs']:.3f} s; encoded chunks to files, each synced: {b['write_files']:.3f} s)")
    if "remote" in array["bound"]:
        b = array["bound"]
        print(f"bound of a cold cat over the link: {b['remote']:.3f} s = {size / b['remote'] / 1e9:.2f} GB/s (the link "
              f"alone {b['remote_link']:.3f} s, decoding and FUSE alone {b['remote_decoding']:.3f} s)")
    if "update-parts" in rows:
        parts = "; ".join(f"{part} {v['median'] * 1e3:.2f} ms" for part, v in rows["update-parts"].items())
        print(f"least for 4 bytes: {parts}")
    print_errors(rows)


def print_errors(rows):
    errors = {(c, v["error"]) for row in rows.values() for c, v in row.items() if "error" in v}
    for column, error in sorted(errors):
        print(f"{column} fails: {error}")


def print_stores(stores):
    rows = stores["rows"]
    print("\nMany arrays, many chunks (ms)")
    lines = [[f"mount to first byte: {c}", shown(v["median"], "ms", 0), ""] for c, v in
             rows.get("first-byte", {}).items()]
    titles = {"ls": f"ls -l of {stores['chunks']:,} chunks", "stat": f"stat of {stores['arrays']:,} arrays"}
    for row, title in titles.items():
        if row in rows:
            lines.append([title, *(shown(median(rows, row, c), "ms", 0) for c in ("zarrfs", "plain"))])
    table(["", "zarrfs", "plain"], lines)
    if "ls-s3" in rows:
        seconds, listings, others = (median(rows, row, "zarrfs") for row in ("ls-s3", "ls-s3-listings", "ls-s3-others"))
        print(f"ls -l of {stores['listed']:,} chunks in a bucket of moto: {listings} listings and {others} others; "
              f"{seconds:.1f} s")


def add_line(lines, rows, row, title, unit, columns):
    """Adds a line for a row that was measured."""
    if row not in rows:
        return
    cells = ["fails" if "error" in rows[row].get(c, {}) else shown(median(rows, row, c), unit, 0) for c in columns]
    # the processor time and the memory of a library are those of the reader, too
    is_comparable = row.endswith(("seconds", "bytes"))
    ratio = times(median(rows, row, "zarrfs"), best_peer(rows, row)[0], unit) if is_comparable else None
    lines.append([title, unit, *cells, f"{ratio:.2f}" if ratio else ""])


def print_series(name, array):
    rows, columns = array["rows"], ["zarrfs", *PEERS]
    print(f"\nseries, {name}: one item of each of {array['shape'][0]} chunks of {array['chunk_bytes'] / 2**20:g} MiB, "
          f"stored {array['stored'] / 2**20:.0f} MiB. The cost of a point: the first one in pass 1, others in pass 2;\n"
          f"medians of {array['rounds']} rounds. x: cost of the best other library relative to that of zarrfs")
    lines = []
    for place in ("local", "remote"):
        for number in (1, 2):
            for key, (title, unit) in SERIES.items():
                add_line(lines, rows, f"{place} pass {number} {key}", f"{place}, pass {number}: {title}", unit, columns)
        add_line(lines, rows, f"{place} peak", f"{place}: peak memory", "MiB", columns)
    table(["", "", *columns, "x best peer"], lines)
    if samples := rows.get("4 KiB", {}).get("zarrfs", {}).get("samples"):
        p50, p99 = (statistics.quantiles(samples, n=100, method="inclusive")[i] for i in (49, 98))
        print(f"then random reads of 4 KiB of the local mount: p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms")
    print_errors(rows)


def per_unit(measure, count, value):
    """Returns the cost for one array, chunk, reader or mount; of reads, the cost of one read."""
    if measure == "reads":
        return 1 / value
    return value if measure.startswith("CPU") else value / count


def print_growth(rows):
    print("\nGrowth. x: cost of each array, chunk, mount or read, relative to the line above; above 1 is worse than "
          "linear")
    lines = []
    for row, columns in rows.items():
        measure = row.split(", ", 1)[1]
        unit, factor = GROWTH[measure]
        before = {}
        for column, values in columns.items():
            name, count = column.rsplit(", ", 1)
            cost = per_unit(measure, int(count), values["median"])
            before.setdefault(name, []).append(
                [row, name, f"{int(count):,}", f"{values['median'] * factor:.2f}", unit, cost])
        for group in before.values():
            for i, line in enumerate(group):
                lines.append([*line[:-1], f"{line[-1] / group[i - 1][-1]:.2f}" if i else ""])
    table(["", "", "", "", "", "x"], lines)


def targets(result):
    """Returns the targets and the measured values: a list of dictionaries."""
    found = []

    def add(table, target, of, measured, needed, at_most=False):
        if measured is not None:
            met = measured <= needed if at_most else measured >= needed
            found.append({"table": table, "target": target, "of": of, "measured": measured, "needed": needed,
                          "at_most": at_most, "met": met})

    for name, array in result["arrays"].items():
        read_targets(functools.partial(add, "reading"), name, array)
        write_targets(functools.partial(add, "writing"), name, array)
        remote_targets(functools.partial(add, "remote stores"), name, array)
    stores = result["stores"]
    listings = median(stores["rows"], "ls-s3-listings", "zarrfs")
    # one more key: the document of the array
    pages = -(-(stores["listed"] + 1) // 1000)
    add("stores", "listings", f"{stores['listed']:,} chunks", listings, pages, at_most=True)
    first = stores["rows"].get("first-byte", {})
    for column, value in first.items():
        if "arrays" in column or "chunks" in column:
            add("stores", "first byte", column, value["median"] - first["empty store"]["median"], 0.1, at_most=True)
    return found


def read_targets(add, name, array):
    rows, bound = array["rows"], array["bound"]
    into_memory, to_file = best_peer(rows, "memory")[0], best_peer(rows, "file")[0]
    least = {"i2-zlib-1": 1.25, "i4-ramp-blosc": 1.0, "f4-order-f": 1.5}.get(name, 0.75)
    for row, column, kind, needed in (("cat", "zarrfs", "cat", least), ("dd", "direct", "direct", 1.0)):
        seconds = median(rows, row, column)
        add(f"{kind}/bound", name, times(seconds, bound.get(column), "s"), 0.75 if name == "f4-64k" else 0.85)
        if array["codec"] in FAST_CODECS:
            add(f"{kind}/memory", name, times(seconds, into_memory, "s"), needed)
        add(f"{kind}/file", name, times(seconds, to_file, "s"), 1.5)
    add("plane/peer", name, times(median(rows, "plane", "zarrfs"), best_peer(rows, "plane")[0], "s"), 1.0)
    for row, title, unit in (("warm", "warm", "s"), ("random-warm-1", "random1", "IOPS"),
                             ("random-warm-4", "random4", "IOPS")):
        ours = median(rows, row, "zarrfs")
        add(f"{title}/null", name, times(ours, median(rows, row, "null"), unit), 0.95)
        add(f"{title}/plain", name, times(ours, median(rows, row, "plain"), unit), 0.85)
    if array["codec"] == "blosc" and array["whole_rows"]:
        add("4K/peer", name, times(median(rows, "latency", "zarrfs"), best_peer(rows, "latency")[0], "us"), 4.0)
    peak_targets(add, name, rows, "peak")


def write_targets(add, name, array):
    rows, bound = array["rows"], array["bound"]
    for row in ("write", "overwrite"):
        add(f"{row}/bound", name, times(median(rows, row, "zarrfs"), bound.get(row), "s"), 0.85)
        add("decoded" if row == "write" else "over: decoded", name, most(rows, f"{row}-decodes"), 0, at_most=True)
        add("stored" if row == "write" else "over: stored", name, most(rows, f"{row}-stored"), 1.0, at_most=True)
    add("random: stored", name, most(rows, "random-write-stored"), 1.0, at_most=True)
    for row in ("write", "write-ext4", "write-xfs"):
        peers = "store-synced" if row == "write" else row
        for peer, needed in (("tensorstore", 2.0 if array["codec"] == "zlib" else 1.5), ("zarrs", 1.0)):
            add(f"{row}/{peer}", name, times(median(rows, row, "zarrfs"), median(rows, peers, peer), "s"), needed)
    add("commits", name, most(rows, "write-ext4-commits"), 8, at_most=True)
    # time relative to the lower bound
    least = times(median(rows, "update", "plain"), median(rows, "update", "zarrfs"), "us")
    add("update/least", name, least, 1.2, at_most=True)
    peak_targets(add, name, rows, "write-peak")


def remote_targets(add, name, array):
    rows = array["rows"]
    ours = median(rows, "remote", "zarrfs")
    add("cat/bound", name, times(ours, array["bound"].get("remote"), "s"), 0.8)
    add("cat/memory", name, times(ours, best_peer(rows, "remote")[0], "s"), 1.0)
    add("requests", name, most(rows, "remote-requests"), 1.1, at_most=True)
    add("zip/directory", name, times(median(rows, "zip", "zarrfs"), median(rows, "zip", "directory"), "s"), 0.95)


def peak_targets(add, name, rows, row):
    for column, bound_mib in (("zarrfs", 512), ("zarrfs-128M", 128)):
        if peak := rows.get(row, {}).get(column):
            add(f"MiB of {bound_mib}", name, peak["max"] / 2**20, bound_mib + 64, at_most=True)


COLUMNS_LEGEND = """zarrfs, direct: a mount, without and with --direct-io. null, null-direct: a FUSE file served from
memory, which the page cache holds in the warm rows. plain: a file of the same bytes; of 4 bytes, a program that decodes
and encodes their chunk and replaces its file, synced. link: an HTTP server of which each answer takes 20 ms, and a
client that discards the data. x: speed of zarrfs relative to the best other library."""
TARGETS_LEGENDS = {
    "reading": """cat, direct: a cold cat, and a cold dd with --direct-io, against the bound, the
best peer reading into memory, the best peer writing a raw file. plane: one plane through a map against the best peer's.
warm, random1, random4: a warm cat and warm random
reads of 1 and 4 jobs against the null and the plain file. 4K: cold reads of 4 KiB against the best peer's. MiB: peak
memory with that cache.""",
    "writing": """write, overwrite: dd and fsync, into an array without a chunk and over all of
its chunks, against the bound and against libraries that write from memory and sync, on this disk, journaled ext4 and
XFS; commits of the journal of ext4; chunks decoded for it, and chunks stored for each chunk of the grid. random: chunks
stored for each that random writes changed. update: 4 bytes and fsync, against the least that takes. MiB: peak memory
with that cache.""",
    "remote stores": """cat: a cold cat over the link against the bound, which is the link, or the cores
that serve, decode and copy, and against the best peer reading into memory. requests: sent for each chunk. zip:
a cold cat of a zip file against one of a directory.""",
}


def print_targets(found):
    """Prints two tables with a line for each array and a column for each target."""
    for table_name, legend in TARGETS_LEGENDS.items():
        needs, cells = {}, {}
        for t in (t for t in found if t["table"] == table_name):
            need = f"{'<=' if t['at_most'] else '>='}{t['needed']:g}"
            whole = t["target"].startswith("MiB") or t["needed"] == 0
            text = f"{t['measured']:.{0 if whole else 2}f}{'' if t['met'] else '!'}"
            if needs.setdefault(t["target"], need) != need:
                text += f" ({need})"
            cells.setdefault(t["of"], {})[t["target"]] = text
        if needs:
            print(f"\nTargets of {table_name}; ! is missed. {legend}")
            table(["", *needs], [["needed", *needs.values()],
                                 *([of, *(line.get(h, "") for h in needs)] for of, line in cells.items())])
    for t in (t for t in found if t["table"] == "stores" and t["target"] == "listings"):
        print(f"listings of {t['of']} in a bucket: {t['measured']}, at most {t['needed']}{'' if t['met'] else '!'}")
    for t in found:
        if t["table"] == "stores" and t["target"] == "first byte":
            print(f"first byte of {t['of']}: {t['measured']:.3f} s beyond an empty store's, at most {t['needed']:g}"
                  f"{'' if t['met'] else '!'}")
    print(f"{sum(t['met'] for t in found)} of {len(found)} targets met")


def print_all(result):
    m = result["machine"]
    print(f"\n{m['cpu']}, {m['cores']} cores, {m['memory_bytes'] / 2**30:.0f} GiB, Linux {m['kernel']}; medians of "
          f"{result['rounds']}; all files in the page cache.")
    print(f"versions: {result['versions']}")
    print(COLUMNS_LEGEND)
    for name, array in result["arrays"].items():
        print_array(name, array)
    if result["stores"]["rows"]:
        print_stores(result["stores"])
    for codec, rows in result.get("shards", {}).items():
        sharded.print_rows(codec, rows)
    for name, array in result.get("series", {}).items():
        print_series(name, array)
    if result.get("growth", {}).get("rows"):
        print_growth(result["growth"]["rows"])
    print_targets(result["targets"])
