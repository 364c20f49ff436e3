//! Which writes of fill values create a chunk: those to its file, and not those to flat bytes. A
//! program that copies `data.raw` writes back the fill values that it has read.

use super::removed::{array, close, write};
use super::*;

fn chunks(fs: &Fs, directory: u64) -> Vec<&'static str> {
    let names = ["0.0", "0.1", "1.0", "1.1"];
    let stored = names.into_iter();
    stored
        .filter(|name| fs.lookup(directory, name).is_ok())
        .collect()
}

#[test]
fn fill_values_in_flat_bytes_create_no_chunk() {
    for name in ["v2", "shards"] {
        let (fs, directory) = array(name);
        let flat = fs.lookup(directory, "data.raw").unwrap().inode;
        let copy = |bytes: &[u8], at: u64| {
            let handle = fs.open(flat, true, false).unwrap().handle;
            write(&fs, handle, at, bytes);
            close(&fs, handle);
        };
        let handle = fs.open(flat, false, false).unwrap().handle;
        let mut shown = Vec::new();
        fs.read(handle, 0, 100, &mut shown).unwrap();
        copy(&shown, 0);
        assert_eq!(chunks(&fs, directory), ["0.0"], "{name}");

        // another value makes a chunk of the whole, and fill values do not remove it
        copy(&[7], 31);
        assert_eq!(chunks(&fs, directory), ["0.0", "1.1"], "{name}");
        copy(&[9; 32], 0);
        assert_eq!(chunks(&fs, directory), ["0.0", "1.1"], "{name}");
        let mut now = Vec::new();
        fs.read(handle, 0, 100, &mut now).unwrap();
        assert_eq!(now, [9; 32], "{name}");

        // a chunk file is created whatever it holds, before or after the flat bytes
        let (_, created) = fs
            .change()
            .create(directory, "0.1", true, false, 0o644)
            .unwrap();
        write(&fs, created.handle, 0, &[9; 8]);
        close(&fs, created.handle);
        let flat = fs.open(flat, true, false).unwrap().handle;
        write(&fs, flat, 0, &[9; 32]);
        let (_, created) = fs
            .change()
            .create(directory, "1.0", true, false, 0o644)
            .unwrap();
        write(&fs, created.handle, 0, &[9; 8]);
        close(&fs, created.handle);
        close(&fs, flat);
        fs.change().store_all().unwrap();
        assert_eq!(chunks(&fs, directory).len(), 4, "{name}");
    }
}

/// The values of an uninitialized chunk without a fill value are undefined to other programs:
/// zeros are written to it as any values.
#[test]
fn zeros_create_a_chunk_without_a_fill_value() {
    let store = Arc::new(MemoryStore::default());
    store.insert(
        "a/.zarray",
        r#"{"zarr_format":2,"shape":[8],"chunks":[4],"dtype":"|u1","compressor":null,
        "fill_value":null,"order":"C","filters":null}"#,
    );
    let fs = mount_store(store.clone(), 1 << 20, false);
    let directory = fs.lookup(1, "a").unwrap().inode;
    let flat = fs.lookup(directory, "data.raw").unwrap().inode;
    let handle = fs.open(flat, true, false).unwrap().handle;
    write(&fs, handle, 0, &[0; 4]);
    close(&fs, handle);
    assert!(fs.lookup(directory, "0").is_ok() && fs.lookup(directory, "1").is_err());
}
