//! Chunk files that are removed while they are open keep their bytes, as any file does.

use super::*;

/// Number of bytes of a chunk.
const CHUNK: usize = 8;

fn document(name: &str) -> (&'static str, String) {
    let codecs = r#"[{"name":"bytes"}]"#;
    let index = r#"[{"name":"bytes","configuration":{"endian":"little"}}]"#;
    match name {
        "v2" => (
            "a/.zarray",
            r#"{"zarr_format":2,"shape":[4,8],"chunks":[2,4],"dtype":"|u1","compressor":{"id":"zlib","level":1},
            "fill_value":9,"order":"F","filters":null}"#
                .to_string(),
        ),
        _ => (
            "a/zarr.json",
            format!(
                r#"{{"zarr_format":3,"node_type":"array","shape":[4,8],"data_type":"uint8","fill_value":9,
                "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[4,8]}}}},
                "chunk_key_encoding":{{"name":"default"}},"codecs":[{{"name":"sharding_indexed","configuration":
                {{"chunk_shape":[2,4],"codecs":{codecs},"index_codecs":{index}}}}}]}}"#
            ),
        ),
    }
}

/// Returns a file system with the array `a`, whose chunk `0.0` is stored, and the directory of the
/// array.
pub fn array(name: &str) -> (Fs, u64) {
    let store = Arc::new(MemoryStore::default());
    let (key, text) = document(name);
    store.insert(key, text);
    let fs = mount_store(store, 1 << 20, false);
    let directory = fs.lookup(1, "a").unwrap().inode;
    let (_, opened) = fs
        .change()
        .create(directory, "0.0", true, false, 0o644)
        .unwrap();
    write(&fs, opened.handle, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    close(&fs, opened.handle);
    (fs, directory)
}

pub fn write(fs: &Fs, handle: u64, offset: u64, data: &[u8]) {
    assert_eq!(fs.change().write(handle, offset, data), Ok(data.len()));
}

pub fn close(fs: &Fs, handle: u64) {
    fs.change().flush(handle).unwrap();
    fs.change().release(handle);
}

fn bytes(fs: &Fs, handle: u64) -> Vec<u8> {
    let mut out = Vec::new();
    fs.read(handle, 0, 1 << 20, &mut out).unwrap();
    out
}

#[test]
fn a_removed_chunk_file_keeps_its_bytes_until_it_is_closed() {
    for name in ["v2", "shards"] {
        let (fs, directory) = array(name);
        let inode = fs.lookup(directory, "0.0").unwrap().inode;
        let reader = fs.open(inode, false, false).unwrap().handle;
        let writer = fs.open(inode, true, false).unwrap().handle;
        write(&fs, writer, 1, &[20]);
        fs.change().unlink(directory, "0.0").unwrap();
        assert!(fs.lookup(directory, "0.0").is_err(), "{name}");
        assert_eq!(bytes(&fs, reader), [1, 20, 3, 4, 5, 6, 7, 8], "{name}");
        let attributes = fs.attributes(inode).unwrap();
        assert!(attributes.is_removed && attributes.size == 8, "{name}");

        // what is written to it goes nowhere
        write(&fs, writer, 6, &[70, 80]);
        assert_eq!(
            fs.change().write(writer, 8, &[1]).unwrap_err().errno(),
            libc::EFBIG
        );
        assert_eq!(bytes(&fs, reader), [1, 20, 3, 4, 5, 6, 70, 80], "{name}");
        fs.change().set_size(inode, 3, Some(writer)).unwrap();
        write(&fs, writer, 4, &[5]);
        assert_eq!(bytes(&fs, reader), [1, 20, 3, 0, 5], "{name}");
        assert_eq!(fs.attributes(inode).unwrap().size, 5);
        fs.change().fsync(writer).unwrap();
        let flat = fs.lookup(directory, "data.raw").unwrap().inode;
        let flat = fs.open(flat, false, false).unwrap().handle;
        assert_eq!(bytes(&fs, flat), [9; 32], "{name}");

        // a chunk that is created under the name is another file
        let (created, opened) = fs
            .change()
            .create(directory, "0.0", true, false, 0o644)
            .unwrap();
        assert_ne!(created.inode, inode, "{name}");
        write(&fs, opened.handle, 0, &[42; CHUNK]);
        close(&fs, opened.handle);
        assert_eq!(bytes(&fs, reader), [1, 20, 3, 0, 5], "{name}");
        close(&fs, writer);
        close(&fs, reader);
        let again = fs.open(created.inode, false, false).unwrap().handle;
        assert_eq!(bytes(&fs, again), [42; CHUNK], "{name}");
        assert!(fs.attributes(inode).is_err(), "{name}");
    }
}

/// A file that was created and is written keeps what the program has written, though it was never
/// stored.
#[test]
fn a_removed_draft_keeps_its_bytes() {
    let (fs, directory) = array("v2");
    let (created, opened) = fs
        .change()
        .create(directory, "1.1", true, false, 0o644)
        .unwrap();
    write(&fs, opened.handle, 0, &[1, 2, 3]);
    fs.change().unlink(directory, "1.1").unwrap();
    assert_eq!(bytes(&fs, opened.handle), [1, 2, 3]);
    assert_eq!(fs.attributes(created.inode).unwrap().size, 3);
    write(&fs, opened.handle, 5, &[6]);
    assert_eq!(bytes(&fs, opened.handle), [1, 2, 3, 0, 0, 6]);
    close(&fs, opened.handle);
    assert!(fs.lookup(directory, "1.1").is_err());
    fs.change().store_all().unwrap();
    assert!(fs.lookup(directory, "1.1").is_err());
}

/// `rm -r` of an array removes the document first or last.
#[test]
fn chunk_files_of_a_removed_array_keep_their_bytes() {
    for is_document_first in [false, true] {
        let (fs, directory) = array("v2");
        let inode = fs.lookup(directory, "0.0").unwrap().inode;
        let reader = fs.open(inode, false, false).unwrap().handle;
        let mut names = ["0.0", ".zarray"];
        if is_document_first {
            names.reverse();
        }
        for name in names {
            fs.change().unlink(directory, name).unwrap();
        }
        fs.remove_directory(1, "a").unwrap();
        assert_eq!(bytes(&fs, reader), [1, 2, 3, 4, 5, 6, 7, 8]);
        close(&fs, reader);
    }
}

/// A large chunk waits in a file, without memory.
#[test]
fn a_large_removed_chunk_file_is_kept_on_disk() {
    let size = 33 << 20;
    let store = Arc::new(MemoryStore::default());
    store.insert(
        "a/.zarray",
        format!(
            r#"{{"zarr_format":2,"shape":[{size}],"chunks":[{size}],"dtype":"|u1","compressor":null,
            "fill_value":0,"order":"C","filters":null}}"#
        ),
    );
    store.insert("a/0", vec![7; size]);
    let fs = mount_store(store, 1 << 20, false);
    let directory = fs.lookup(1, "a").unwrap().inode;
    let inode = fs.lookup(directory, "0").unwrap().inode;
    let reader = fs.open(inode, false, false).unwrap().handle;
    fs.change().unlink(directory, "0").unwrap();
    let mut out = Vec::new();
    fs.read(reader, size as u64 - 3, 100, &mut out).unwrap();
    assert_eq!(out, [7; 3]);
    close(&fs, reader);
}
