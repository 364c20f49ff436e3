//! "All zarrfs programs of one machine take turns at changing a value": several mounts of one store
//! write cells of their own in the same chunks, and sync each. What the store holds in the end, and
//! what each mount shows of its own cells meanwhile, is compared with what was written.

use crate::foreign_writer::Foreign;
use crate::support::daemon::Daemon;
use crate::support::{announce, env_number, open_for_writing, zarrfs};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Size of a cell in bytes.
const CELL: usize = 8;

/// Cells in a chunk, and chunks in a shard.
const CHUNK: usize = 128;
const SHARD: usize = 2;

/// Returns the number of cells of each test.
fn cells() -> usize {
    env_number("ZARRFS_CELLS", 512) as usize
}

/// Returns the bytes of a cell, never those of a neighbor and never the fill value.
fn content(cell: usize) -> [u8; CELL] {
    [(cell % 255) as u8 + 1; CELL]
}

fn v2() -> (&'static str, Value) {
    let document = json!({"zarr_format": 2, "shape": [cells() * CELL], "chunks": [CHUNK * CELL], "dtype": "|u1",
        "compressor": {"id": "zlib", "level": 1}, "fill_value": 0, "order": "C", "filters": null});
    (".zarray", document)
}

fn v3(in_shards: bool) -> (&'static str, Value) {
    let bytes = json!([{"name": "bytes"}]);
    let index =
        json!([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]);
    let shards = json!([{"name": "sharding_indexed", "configuration":
        {"chunk_shape": [CHUNK * CELL], "codecs": bytes, "index_codecs": index}}]);
    let (codecs, chunk) = if in_shards {
        (shards, SHARD * CHUNK * CELL)
    } else {
        (bytes, CHUNK * CELL)
    };
    let document = json!({"zarr_format": 3, "node_type": "array", "shape": [cells() * CELL], "data_type": "uint8",
        "fill_value": 0, "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}},
        "chunk_key_encoding": {"name": "default"}, "codecs": codecs});
    ("zarr.json", document)
}

/// Writes and syncs every `count`th cell from `first` on, first zeros. A file that is opened after a
/// sync must show the cell if the mounts are alone.
fn write_cells(mount: &Path, first: usize, count: usize, is_alone: bool) {
    let path = mount.join("data.raw");
    let file = open_for_writing(&path);
    for cell in (first..cells()).step_by(count) {
        let at = (cell * CELL) as u64;
        for bytes in [[0; CELL], content(cell)] {
            file.write_all_at(&bytes, at).unwrap();
            file.sync_all().unwrap();
        }
        if is_alone && cell % 16 == first {
            let mut shown = [0; CELL];
            let again = fs::File::open(&path).unwrap();
            again.read_exact_at(&mut shown, at).unwrap();
            assert_eq!(shown, content(cell), "mount {first} at once: cell {cell}");
        }
    }
}

/// Several mounts of one array.
struct Mounts {
    store: tempfile::TempDir,
    daemons: Vec<Daemon>,
}

impl Mounts {
    fn new((name, document): (&str, Value), mounts: usize, options: &[&str]) -> Mounts {
        let store = tempfile::tempdir().unwrap();
        let array = store.path().join("a");
        fs::create_dir(&array).unwrap();
        fs::write(array.join(name), document.to_string()).unwrap();
        let start = |_| Daemon::start(&array, options);
        let daemons = (0..mounts).map(start).collect();
        Mounts { store, daemons }
    }

    fn array(&self) -> PathBuf {
        self.store.path().join("a")
    }

    /// Unmounts, and returns the cells that the store does not hold as they were written.
    fn lost(self) -> Vec<usize> {
        for daemon in self.daemons {
            assert!(daemon.unmount().success());
        }
        let array = self.store.path().join("a");
        let stored = zarrfs(&["cat", array.to_str().unwrap()]).stdout;
        assert_eq!(stored.len(), cells() * CELL);
        let stored = stored.chunks(CELL).enumerate();
        let lost = stored.filter(|(cell, bytes)| *bytes != content(*cell));
        lost.map(|(cell, _)| cell).collect()
    }
}

fn assert_every_cell_is_kept((name, document): (&str, Value), count: usize, options: &[&str]) {
    let mounts = Mounts::new((name, document), count, options);
    std::thread::scope(|scope| {
        for (first, daemon) in mounts.daemons.iter().enumerate() {
            let mount = daemon.path();
            scope.spawn(move || write_cells(&mount, first, count, true));
        }
    });
    assert_eq!(mounts.lost(), [0; 0], "{name}");
    announce(&format!(
        "{count} mounts, {} cells, {name} {options:?}: all kept",
        cells()
    ));
}

#[test]
fn cells_in_the_same_chunks_are_all_kept() {
    for mounts in [2, 3] {
        assert_every_cell_is_kept(v2(), mounts, &[]);
        assert_every_cell_is_kept(v3(false), mounts, &[]);
    }
}

#[test]
fn cells_in_the_same_shards_are_all_kept() {
    for mounts in [2, 3] {
        assert_every_cell_is_kept(v3(true), mounts, &[]);
    }
}

/// A mount that removes a chunk of zeros does not remove the cells of another one.
#[test]
fn cells_are_kept_while_empty_chunks_are_removed() {
    assert_every_cell_is_kept(v2(), 2, &["--drop-empty-chunks"]);
}

/// "the mount loses no other program's chunk, but a library that reads a chunk, changes and writes
/// it loses what the mount has stored in between"
#[test]
fn a_library_without_locks_loses_no_cell_to_mounts() {
    const WRITERS: usize = 4;
    let mounts = Mounts::new(v2(), WRITERS - 1, &[]);
    let Some(mut library) = Foreign::start(&mounts.array(), None) else {
        return;
    };
    let is_of_library = |cell: &usize| cell % WRITERS == WRITERS - 1;
    std::thread::scope(|scope| {
        for (first, daemon) in mounts.daemons.iter().enumerate() {
            let mount = daemon.path();
            scope.spawn(move || write_cells(&mount, first, WRITERS, false));
        }
        for cell in (0..cells()).filter(is_of_library) {
            let value = content(cell)[0];
            library.ask(&format!("set {} {value} {CELL}", cell * CELL));
        }
    });
    drop(library);
    let (of_library, of_mounts): (Vec<usize>, Vec<usize>) =
        mounts.lost().into_iter().partition(is_of_library);
    announce(&format!(
        "{} cells by {} mounts and a library: the library has overwritten {} cells of mounts",
        cells(),
        WRITERS - 1,
        of_mounts.len()
    ));
    assert_eq!(of_library, [0; 0], "cells of the library");
}
