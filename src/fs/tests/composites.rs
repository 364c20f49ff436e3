//! Composite files, made of bytes and flat bytes, are compared with plain bytes in memory.

use super::with_tree;
use crate::fs::files::composite::CompositeFile;
use crate::fs::tests::model::mount;
use crate::fs::tree::Headers;
use crate::fs::*;
use proptest::prelude::*;
use zarrfs_export::{Composite, GroupFormat, ItemForm, PartContent, StoredInteger};
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::testing::FaultyStore;
use zarrfs_store::{MemoryStore, Readable};

/// Name, shape and dtype of two arrays: 30 and 24 flat bytes in chunks of 8 bytes, with items of 2
/// and 4 bytes.
const ARRAYS: [(&str, &str, &str); 2] = [("a", "[15]", "<i2"), ("b", "[3,2]", "<i4")];

fn document(shape: &str, dtype: &str) -> String {
    let chunks = if shape.contains(',') { "[2,1]" } else { "[4]" };
    format!(
        r#"{{"zarr_format":2,"shape":{shape},"chunks":{chunks},"dtype":"{dtype}","compressor":{{"id":"zlib"}},
        "fill_value":0,"order":"C","filters":null}}"#
    )
}

fn metadata(name: &str) -> ArrayMetadata {
    let (_, shape, dtype) = ARRAYS
        .into_iter()
        .find(|(array, ..)| *array == name)
        .unwrap();
    ArrayMetadata::parse(document(shape, dtype).as_bytes()).unwrap()
}

fn store() -> Arc<FaultyStore> {
    let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::default())));
    for (name, shape, dtype) in ARRAYS {
        store
            .put(
                &Key::root().join(name).join(".zarray"),
                document(shape, dtype).as_bytes(),
            )
            .unwrap();
    }
    store
}

fn open(fs: &Fs, file: Composite) -> u64 {
    let file = CompositeFile::new(
        Node::Dataset(Key::root(), GroupFormat::Netcdf),
        Arc::new(file),
        false,
    );
    fs.insert(NewFile::new(Arc::new(file), KernelPages::None))
        .handle
}

/// Returns a file of a header, array `a` as stored, padding, array `b` with reversed items of
/// `swap` bytes, and one last byte. Also returns the file's bytes, and for each of them whether it
/// is fixed.
fn file(swap: usize) -> (Composite, Vec<u8>, Vec<bool>) {
    let mut file = Composite::from("head".to_string());
    file.push_flat(Key::root().join("a"), &metadata("a"), ItemForm::AsStored);
    file.pad_to(8);
    file.push_flat(
        Key::root().join("b"),
        &metadata("b"),
        ItemForm::Reversed(swap),
    );
    file.push_bytes(vec![7]);
    let mut bytes = Vec::new();
    let mut fixed = Vec::new();
    for part in file.parts() {
        let len = part.len as usize;
        match &part.content {
            PartContent::Bytes(text) => bytes.extend_from_slice(text),
            _ => bytes.resize(bytes.len() + len, 0),
        }
        fixed.extend(vec![!part.is_flat(); len]);
    }
    (file, bytes, fixed)
}

fn with_npy(fs: Fs) -> Fs {
    let headers = Headers {
        formats: vec![zarrfs_export::Format::Npy],
        ..Headers::default()
    };
    with_tree(fs, |tree| tree.with_headers(headers))
}

fn read(fs: &Fs, handle: u64, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut out = vec![1; 3];
    if !fs.read_cached(handle, offset as u64, len, &mut out)? {
        fs.read(handle, offset as u64, len, &mut out)?;
    }
    Ok(out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// "container files are a header followed by the same bytes as data.raw, readable and writable
    /// at any offset (the header part is read-only)"; a write that would change it fails with EPERM
    /// and changes nothing. After such a write, or one beyond the end, every write fails.
    #[test]
    fn a_composite_is_a_file_of_bytes(
        swap in prop::sample::select(vec![1usize, 2, 4, 8]),
        steps in prop::collection::vec((0usize..75, 0usize..60, any::<u8>(), 0..4), 1..25),
    ) {
        let store = store();
        let fs = mount(&store, 1 << 16);
        let (composite, mut model, fixed) = file(swap);
        let mut handle = open(&fs, composite.clone());
        let mut closed = false;
        for (offset, len, seed, step) in steps {
            let end = (offset + len).min(model.len());
            if step > 0 {
                let wanted = model.get(offset..end).unwrap_or_default();
                prop_assert_eq!(&read(&fs, handle, offset, len).unwrap(), wanted);
                continue;
            }
            let data: Vec<u8> = (0..len).map(|i| seed.wrapping_add(i as u8 * 3)).collect();
            if closed {
                prop_assert_eq!(fs.change().write(handle, offset as u64, &data).unwrap_err().errno(), libc::EPERM);
                fs.change().flush(handle).unwrap();
                fs.change().release(handle);
                handle = open(&fs, composite.clone());
            }
            let written = fs.change().write(handle, offset as u64, &data);
            closed = offset + len > model.len();
            if closed {
                prop_assert_eq!(written.unwrap_err().errno(), libc::EFBIG);
                continue;
            }
            closed = (offset..end).any(|at| fixed[at] && model[at] != data[at - offset]);
            if closed { prop_assert_eq!(written.unwrap_err().errno(), libc::EPERM) } else {
                    prop_assert_eq!(written.unwrap(), len);
                    model[offset..end].copy_from_slice(&data);
                }
        }
        // another mount shows the same bytes, in the arrays' own byte order
        fs.change().flush(handle).unwrap();
        fs.change().release(handle);
        let fs = mount(&store, 1 << 16);
        let flat = |name: &str| {
            let inode = fs.lookup(fs.lookup(1, name).unwrap().inode, "data.raw").unwrap().inode;
            let handle = fs.open(inode, false, false).unwrap().handle;
            read(&fs, handle, 0, 100).unwrap()
        };
        prop_assert_eq!(&flat("a"), &model[4..34]);
        let mut b = model[40..64].to_vec();
        b.chunks_exact_mut(swap).for_each(<[u8]>::reverse);
        prop_assert_eq!(&flat("b"), &b);
        let handle = open(&fs, composite);
        prop_assert_eq!(read(&fs, handle, 0, 100).unwrap(), model);
    }
}

/// "read your writes at once, through every file of the mount (`data.raw`, `data.npy`, the chunk
/// file)"; "open files of the array have its new length": an open file shows the new shape, as
/// `data.raw` does.
#[test]
fn a_container_shows_writes_and_the_new_length() {
    let store = store();
    let fs = with_npy(mount(&store, 1 << 16));
    let array = fs.lookup(1, "a").unwrap().inode;
    let [raw, npy] = ["data.raw", "data.npy"].map(|name| fs.lookup(array, name).unwrap().inode);
    let [raw, npy] = [raw, npy].map(|inode| fs.open(inode, true, false).unwrap().handle);
    fs.change().write(raw, 3, &[9, 8, 7]).unwrap();
    let bytes = read(&fs, npy, 0, 1000).unwrap();
    assert_eq!(
        (&bytes[..8], bytes.len()),
        (&b"\x93NUMPY\x01\x00"[..], 128 + 30)
    );
    assert_eq!(bytes[128..136], [0, 0, 0, 9, 8, 7, 0, 0]);
    assert_eq!(fs.change().write(npy, 0, &bytes[..130]).unwrap(), 130);
    assert_eq!(
        fs.change().write(npy, 60, b"other").unwrap_err().errno(),
        libc::EPERM
    );
    assert_eq!(
        fs.change().write(npy, 129, &[5]).unwrap_err().errno(),
        libc::EPERM
    );
    let npy = fs
        .open(fs.lookup(array, "data.npy").unwrap().inode, true, false)
        .unwrap()
        .handle;
    fs.change().write(npy, 129, &[5]).unwrap();
    assert_eq!(read(&fs, raw, 0, 4).unwrap(), [0, 5, 0, 9]);
    let chunk = fs
        .open(fs.lookup(array, "0").unwrap().inode, false, false)
        .unwrap()
        .handle;
    assert_eq!(read(&fs, chunk, 0, 8).unwrap(), [0, 5, 0, 9, 8, 7, 0, 0]);
    let key = Key::root().join("a/.zarray");
    store.put(&key, document("[16]", "<i2").as_bytes()).unwrap();
    let again = fs.lookup(array, "data.raw").unwrap().inode;
    fs.open(again, false, false).unwrap();
    let new = fs
        .open(fs.lookup(array, "data.npy").unwrap().inode, false, false)
        .unwrap()
        .handle;
    let bytes = read(&fs, new, 0, 1000).unwrap();
    assert_eq!(
        (&bytes[128..132], bytes.len()),
        (&[0, 5, 0, 9][..], 128 + 32)
    );
    assert_eq!(read(&fs, npy, 0, 1000).unwrap(), bytes);
}

/// An array of the same size may have another dtype: bytes of integers are no floats.
#[test]
fn an_array_of_another_dtype_is_another_array() {
    let store = store();
    let fs = with_npy(mount(&store, 1 << 16));
    let array = fs.lookup(1, "a").unwrap().inode;
    let [raw, npy] = ["data.raw", "data.npy"].map(|name| fs.lookup(array, name).unwrap().inode);
    let npy = fs.open(npy, true, false).unwrap().handle;
    assert_eq!(read(&fs, npy, 128, 100).unwrap(), [0; 30]);
    for other in [
        document("[15]", ">i2"),
        document("[30]", "|i1"),
        document("[3,5]", "<i2"),
    ] {
        store
            .put(&Key::root().join("a/.zarray"), other.as_bytes())
            .unwrap();
        fs.open(raw, false, false).unwrap();
        assert_eq!(
            read(&fs, npy, 128, 4).unwrap_err().errno(),
            libc::ESTALE,
            "{other}"
        );
        assert_eq!(
            fs.change().write(npy, 128, &[1, 2]).unwrap_err().errno(),
            libc::ESTALE,
            "{other}"
        );
    }
    store
        .put(
            &Key::root().join("a/.zarray"),
            document("[15]", "<i2").as_bytes(),
        )
        .unwrap();
    fs.open(raw, false, false).unwrap();
    assert_eq!(read(&fs, npy, 128, 100).unwrap(), [0; 30]);
}

/// Returns a store of an array of bytes whose first chunk holds ones, and a mount of the store.
fn bytes_of_one() -> (Arc<MemoryStore>, Fs) {
    let store = Arc::new(MemoryStore::default());
    let plain = document("[15]", "|u1").replace(r#"{"id":"zlib"}"#, "null");
    store.insert("a/.zarray", plain.into_bytes());
    store.insert("a/0", vec![1; 4]);
    let faulty = Arc::new(FaultyStore::new(store.clone()));
    (store, with_npy(mount(&faulty, 1 << 16)))
}

/// Opening `data.raw` drops pages that are older than the store, even if a container was opened and
/// read after the change.
#[test]
fn pages_of_data_raw_are_dropped_when_a_container_has_seen_the_change_first() {
    let (store, fs) = bytes_of_one();
    let array = fs.lookup(1, "a").unwrap().inode;
    let [raw, npy] = ["data.raw", "data.npy"].map(|name| fs.lookup(array, name).unwrap().inode);
    let open_raw = || {
        let opened = fs.open(raw, false, false).unwrap();
        let bytes = read(&fs, opened.handle, 0, 4).unwrap();
        fs.change().release(opened.handle);
        (opened.pages, bytes)
    };
    assert_eq!(open_raw(), (KernelPages::Fresh, vec![1; 4]));
    assert_eq!(open_raw().0, KernelPages::Kept);
    store.insert("a/0", vec![2; 4]);
    let npy = fs.open(npy, false, false).unwrap().handle;
    assert_eq!(read(&fs, npy, 128, 4).unwrap(), [2; 4]);
    assert_eq!(open_raw(), (KernelPages::Fresh, vec![2; 4]));
}

/// All readers of a file whose pages the kernel keeps get bytes at least as new as the latest
/// opening of the file.
#[test]
fn an_opening_of_a_container_makes_earlier_ones_read_new_bytes() {
    let (store, fs) = bytes_of_one();
    let npy = fs
        .lookup(fs.lookup(1, "a").unwrap().inode, "data.npy")
        .unwrap()
        .inode;
    let first = fs.open(npy, false, false).unwrap().handle;
    // reads the chunk as a whole, so that the cache keeps it
    assert_eq!(read(&fs, first, 128, 15).unwrap()[..5], [1, 1, 1, 1, 0]);
    store.insert("a/0", vec![2; 4]);
    fs.open(npy, false, false).unwrap();
    assert_eq!(read(&fs, first, 128, 15).unwrap()[..5], [2, 2, 2, 2, 0]);
}

/// Writes bytes of doubles that stand for integers at odd offsets, and a value that is no integer.
#[test]
fn doubles_are_written_in_parts() {
    let store = store();
    let shown = document("[3]", "<i8");
    store
        .put(&Key::root().join("t/.zarray"), shown.as_bytes())
        .unwrap();
    let fs = mount(&store, 1 << 16);
    let mut file = Composite::default();
    let metadata = ArrayMetadata::parse(shown.as_bytes()).unwrap();
    let stored = StoredInteger::of(&metadata).unwrap();
    let form = ItemForm::Double(stored);
    file.push_flat(Key::root().join("t"), &metadata, form);
    let handle = open(&fs, file);
    let days: Vec<u8> = [1.0f64, -2.0, 700_000.0]
        .iter()
        .flat_map(|day| day.to_be_bytes())
        .collect();
    fs.change().write(handle, 0, &days).unwrap();
    // the first 2 bytes turn the second double, -2.0, into -3.0; the last 7 turn the third, 700000,
    // into 701024
    fs.change()
        .write(handle, 8, &(-3.0f64).to_be_bytes()[..2])
        .unwrap();
    fs.change()
        .write(handle, 17, &701_024f64.to_be_bytes()[1..])
        .unwrap();
    assert_eq!(
        fs.change()
            .write(handle, 8, &0.5f64.to_be_bytes())
            .unwrap_err()
            .errno(),
        libc::EINVAL
    );
    let flat = fs
        .lookup(fs.lookup(1, "t").unwrap().inode, "data.raw")
        .unwrap()
        .inode;
    let flat = fs.open(flat, false, false).unwrap().handle;
    let stored: Vec<u8> = [1i64, -3, 701_024]
        .iter()
        .flat_map(|day| day.to_le_bytes())
        .collect();
    assert_eq!(read(&fs, flat, 0, 24).unwrap(), stored);
}

/// A program that writes a file in blocks cuts characters and numbers anywhere. Half of an item
/// waits for the rest, is shown to the program that wrote it, and is an error at the end.
#[test]
fn half_an_item_waits_for_the_other_half() {
    let store = store();
    let shown = document("[3]", "<U2").replace("\"fill_value\":0", "\"fill_value\":\"\"");
    store
        .put(&Key::root().join("s/.zarray"), shown.as_bytes())
        .unwrap();
    let fs = mount(&store, 1 << 16);
    let metadata = ArrayMetadata::parse(shown.as_bytes()).unwrap();
    let mut file = Composite::default();
    file.push_flat(
        Key::root().join("s"),
        &metadata,
        ItemForm::Utf8 {
            size: 8,
            is_big_endian: false,
        },
    );
    let handle = open(&fs, file.clone());
    let text = ["äö\0\0\0\0", "ab\0\0\0\0\0\0", "ß\0\0\0\0\0\0"]
        .concat()
        .into_bytes();
    fs.change().write(handle, 0, &text[..3]).unwrap();
    assert_eq!(
        read(&fs, handle, 0, 4).unwrap(),
        [text[0], text[1], text[2], 0]
    );
    assert_eq!(fs.change().flush(handle).unwrap_err().errno(), libc::EINVAL);
    fs.change().write(handle, 3, &text[3..17]).unwrap();
    fs.change().write(handle, 17, &text[17..]).unwrap();
    assert_eq!(read(&fs, handle, 0, 24).unwrap(), text);
    fs.change().flush(handle).unwrap();
    let flat = fs
        .lookup(fs.lookup(1, "s").unwrap().inode, "data.raw")
        .unwrap()
        .inode;
    let flat = fs.open(flat, false, false).unwrap().handle;
    let stored: Vec<u8> = "äöabß\0"
        .chars()
        .flat_map(|c| u32::from(c).to_le_bytes())
        .collect();
    assert_eq!(read(&fs, flat, 0, 24).unwrap(), stored);
}

/// A sync of a file stores the bytes that were written through it, also if the array has grown
/// since: the dirty chunks have moved to the array of the new shape.
#[test]
fn a_composite_stores_its_bytes_after_the_array_has_grown() {
    let store = store();
    let fs = with_npy(mount(&store, 1 << 16));
    let fs = Fs {
        options: Options {
            resize: true,
            ..fs.options.clone()
        },
        ..fs
    };
    let directory = fs.lookup(1, "a").unwrap().inode;
    let [npy, flat] = ["data.npy", "data.raw"].map(|name| {
        let inode = fs.lookup(directory, name).unwrap().inode;
        (inode, fs.open(inode, true, false).unwrap().handle)
    });
    let end = fs.attributes(npy.0).unwrap().size;
    fs.change().write(npy.1, end - 30, &[5; 8]).unwrap();
    fs.change().write(flat.1, 30, &[6; 2]).unwrap();
    assert_eq!(fs.attributes(flat.0).unwrap().size, 32);
    let key = Key::normalize("a/0").unwrap();
    assert!(store.stat(&key).unwrap().is_none());
    fs.change().fsync(npy.1).unwrap();
    assert!(store.stat(&key).unwrap().is_some());
}
