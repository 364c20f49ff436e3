"""Stores with many arrays or many chunks, written file by file."""
import json
import os
import shutil

CHUNK = 64  # size of a chunk in bytes; 8 x 8 in two dimensions
ROWS = 1000  # number of rows of chunks in the grid of ten million chunks


def document(shape, chunks, separator="."):
    return json.dumps({"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|u1", "compressor": None,
                       "filters": None, "fill_value": 0, "order": "C", "dimension_separator": separator})


def empty(store):
    (store / ".zgroup").write_text('{"zarr_format": 2}')


def one_array(store):
    many_chunks(store, 1)


def many_chunks(store, count):
    (store / ".zarray").write_text(document([count * CHUNK], [CHUNK]))
    for i in range(count):
        (store / str(i)).write_bytes(bytes([i % 251] * CHUNK))


def names(count):
    return [f"array{i:05}" for i in range(count)]


def many_arrays(store, count):
    empty(store)
    text = document([CHUNK], [CHUNK])
    for name in names(count):
        (store / name).mkdir()
        (store / name / ".zarray").write_text(text)
        (store / name / "0").write_bytes(bytes(CHUNK))


def large_grid(store, columns, stored_columns):
    """Creates a grid of ROWS x `columns` chunks, and stores the first `stored_columns` of each row. All but one of a
    row are hard links, which need no space but are directory entries like others."""
    (store / ".zarray").write_text(document([ROWS * 8, columns * 8], [8, 8], "/"))
    for row in range(ROWS):
        (store / str(row)).mkdir()
        if stored_columns:
            # one file per row, since a file of ext4 has at most 65,000 links
            first = store / str(row) / "0"
            first.write_bytes(bytes([row % 251] * CHUNK))
            for column in range(1, stored_columns):
                os.link(first, store / str(row) / str(column))


def made(directory, name, function, *arguments):
    """Returns a store that `function` creates unless an earlier run did."""
    store = directory / f"{name}.zarr"
    if not (store / ".made").exists():
        print(f"making {store.name}", flush=True)
        shutil.rmtree(store, ignore_errors=True)
        store.mkdir()
        function(store, *arguments)
        (store / ".made").touch()
    return store


def made_arrays(directory, arrays):
    return made(directory, f"{arrays}-arrays", many_arrays, arrays)


def made_grid(directory, columns, stored):
    return made(directory, f"grid-{ROWS * columns}-{ROWS * stored}-stored", large_grid, columns, stored)


def make_all(directory, arrays, chunks, columns, ten_million):
    """Returns the stores of each row of StoreBench."""
    many = made_arrays(directory, arrays)
    listed = made(directory, f"{chunks}-chunks", many_chunks, chunks)
    stored = columns if ten_million else 1
    grid = made_grid(directory, columns, stored)
    return {
        "first-byte": {
            "empty store": (made(directory, "empty", empty), ".zgroup"),
            "one array": (made(directory, "one-array", one_array), "data.raw"),
            f"{arrays:,} arrays": (many, f"{names(arrays)[-1]}/data.raw"),
            f"{chunks:,} chunks": (listed, "data.raw"),
            f"grid of {ROWS * columns:,} chunks, {ROWS * stored:,} stored": (grid, "data.raw"),
        },
        "ls": listed,
        "stat": (many, names(arrays)),
    }
