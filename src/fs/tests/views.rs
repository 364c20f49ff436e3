//! Views of arrays against plain numbers in memory.

use super::with_tree;
use crate::array::hierarchy::{DOCUMENTS, Hierarchy};
use crate::fs::tests::model::mount;
use crate::fs::tree::{Headers, Views};
use crate::fs::*;
use proptest::prelude::*;
use zarrfs_export::Format;
use zarrfs_format::metadata::V1Order;
use zarrfs_store::testing::{FaultyStore, SimulatedRemote};
use zarrfs_store::{
    FirstNames, MemoryStore, MetadataCache, PagedListing, Reach, Readable, Store, delegate_store,
};

/// Packed integers in chunks of 4 x 3 items, of which only the first is stored at the beginning.
const SHAPE: [usize; 3] = [3, 5, 7];

const ATTRIBUTES: &str = r#"{"scale_factor":0.5,"add_offset":10,"_FillValue":-9}"#;

fn store(dtype: &str, attributes: &str) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::default());
    let document = format!(
        r#"{{"zarr_format":2,"shape":{SHAPE:?},"chunks":[2,3,4],"dtype":"{dtype}","compressor":{{"id":"zlib"}},
        "fill_value":-9,"order":"F","filters":null}}"#
    );
    store.insert("a/.zarray", document.into_bytes());
    store.insert("a/.zattrs", attributes.as_bytes().to_vec());
    store
}

fn with_views(store: &Arc<MemoryStore>) -> Fs {
    let fs = mount(&Arc::new(FaultyStore::new(store.clone())), 1 << 16);
    let headers = Headers {
        formats: vec![Format::Npy],
        ..Headers::default()
    };
    with_tree(fs, |tree| {
        tree.with_headers(headers).with_views(Views {
            unpacked: true,
            slices: true,
        })
    })
}

fn inode(fs: &Fs, path: &str) -> u64 {
    path.split('/')
        .fold(1, |parent, name| fs.lookup(parent, name).unwrap().inode)
}

fn open(fs: &Fs, path: &str) -> u64 {
    fs.open(inode(fs, path), true, false).unwrap().handle
}

fn read(fs: &Fs, handle: u64, offset: usize, len: usize) -> Vec<u8> {
    let mut out = vec![1; 3];
    if !fs
        .read_cached(handle, offset as u64, len, &mut out)
        .unwrap()
    {
        fs.read(handle, offset as u64, len, &mut out).unwrap();
    }
    out
}

fn bytes(values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Values are read in any part at any offset and written in whole items, through either file of
    /// the view.
    #[test]
    fn physical_values_are_a_file_of_floats(
        dtype in prop::sample::select(vec!["<i2", ">i2", "<i4", ">f4"]),
        steps in prop::collection::vec((0usize..1000, 0usize..300, -500i32..500, 0usize..6), 1..30),
    ) {
        const NPY: usize = 128;
        let store = store(dtype, ATTRIBUTES);
        let fs = with_views(&store);
        let mut model = vec![f64::NAN; SHAPE.iter().product()];
        let files = [(open(&fs, "a.unpacked/data.raw"), 0), (open(&fs, "a.unpacked/data.npy"), NPY)];
        for (offset, len, seed, step) in steps {
            let (handle, start) = files[step % 2];
            let shown = bytes(&model);
            if step < 4 {
                let wanted = &shown[offset.min(shown.len())..(offset + len).min(shown.len())];
                prop_assert_eq!(read(&fs, handle, start + offset, len), wanted);
                continue;
            }
            // a missing value in the middle, and halves of steps
            let values: Vec<f64> = (0..len as i32 / 8).map(|i| match i {
                2 => f64::NAN,
                _ => 10.0 + f64::from(seed + i * 3) * 0.5,
            }).collect();
            let data = bytes(&values);
            let aligned = offset / 8 * 8;
            let fits = aligned + data.len() <= shown.len() && !data.is_empty();
            let is_held = !values.contains(&(10.0 - 4.5));
            if !fits {
                continue;
            }
            let written = fs.change().write(handle, (start + aligned) as u64, &data);
            if !is_held {
                prop_assert_eq!(written.unwrap_err().errno(), libc::EINVAL);
            } else {
                prop_assert_eq!(written.unwrap(), data.len());
                model[aligned / 8..][..values.len()].copy_from_slice(&values);
            }
            for (from, to) in [(1, data.len()), (0, data.len() - 1), (3, 3 + data.len() / 2)] {
                if (from % 8 != 0 || to % 8 != 0) && to <= data.len() && from < to {
                    let part = fs.change().write(handle, (start + aligned + from) as u64, &data[from..to]);
                    prop_assert_eq!(part.unwrap_err().errno(), libc::EINVAL);
                }
            }
            prop_assert_eq!(read(&fs, handle, start, 10_000), bytes(&model));
        }
        for (handle, _) in files {
            fs.change().flush(handle).unwrap();
            fs.change().release(handle);
        }
        let fs = with_views(&store);
        let handle = open(&fs, "a.unpacked/data.raw");
        prop_assert_eq!(read(&fs, handle, 0, 10_000), bytes(&model));
    }

    /// A slice is a part of `data.raw`, at any offset.
    #[test]
    fn slices_are_parts_of_the_flat_bytes(
        steps in prop::collection::vec((0usize..3, 0usize..90, 0usize..90, any::<u8>(), 0..3), 1..25),
    ) {
        const PLANE: usize = 5 * 7 * 2;
        let store = store("<i2", "{}");
        let fs = with_views(&store);
        let flat = open(&fs, "a/data.raw");
        let mut model = read(&fs, flat, 0, 10_000);
        let planes = [0, 1, 2].map(|plane| open(&fs, &format!("a.slices/{plane}/data.raw")));
        for (plane, offset, len, seed, step) in steps {
            let data: Vec<u8> = (0..len).map(|i| seed.wrapping_add(i as u8)).collect();
            let start = plane * PLANE;
            let room = PLANE.saturating_sub(offset).min(len);
            if step == 0 && room > 0 {
                prop_assert_eq!(fs.change().write(planes[plane], offset as u64, &data).unwrap(), room);
                model[start + offset..][..room].copy_from_slice(&data[..room]);
            } else if step == 0 && len > 0 {
                prop_assert_eq!(fs.change().write(planes[plane], offset as u64, &data).unwrap_err().errno(), libc::EFBIG);
            } else if step == 1 {
                let wanted = if room == 0 { &[] } else { &model[start + offset..][..room] };
                prop_assert_eq!(read(&fs, planes[plane], offset, len), wanted);
            }
            prop_assert_eq!(&read(&fs, flat, 0, 10_000), &model);
        }
    }
}

/// A remote store that answers with the names of a level at once, as buckets do.
struct SimulatedBucket {
    below: Arc<SimulatedRemote>,
}

impl Readable for SimulatedBucket {
    delegate_store!(below: read stat list capabilities location);
}

impl Store for SimulatedBucket {}

impl PagedListing for SimulatedBucket {
    fn first_names(&self, prefix: &Key) -> Result<Option<FirstNames>> {
        let entries = self.below.list(prefix)?.collect::<Result<_>>()?;
        Ok(Some(FirstNames {
            entries,
            reach: Reach::All,
        }))
    }
}

/// A server is asked for the documents of many arrays together, and for each once.
#[test]
fn a_listing_with_views_asks_for_the_documents_together() {
    const ARRAYS: usize = 30;
    let remote = Arc::new(SimulatedRemote::new(
        std::time::Duration::from_millis(100),
        true,
    ));
    let documents = store("<i2", ATTRIBUTES);
    for name in [".zarray", ".zattrs"] {
        let mut text = Vec::new();
        documents
            .get(&Key::root().join("a").join(name), 1 << 20, &mut text)
            .unwrap();
        (0..ARRAYS).for_each(|i| remote.below.insert(&format!("a{i}/{name}"), text.clone()));
    }
    remote.gather_where(5, |key| key.depth() == 2 && key.name() == ".zarray");
    let bucket = Arc::new(SimulatedBucket {
        below: remote.clone(),
    });
    let cached = Arc::new(MetadataCache::new(bucket, None).with_documents(&DOCUMENTS));
    let hierarchy = Hierarchy::new(cached, V1Order::Zarr1, Arc::default());
    let cache = Arc::new(Cache::new(1 << 16, Arc::default()));
    let tree = Tree::new(hierarchy, cache).with_views(Views {
        unpacked: true,
        slices: true,
    });
    let names: Vec<_> = tree
        .names(&Node::Directory(Key::root()))
        .unwrap()
        .map(|name| name.unwrap().name)
        .collect();
    assert!(
        names.contains(&"a7.unpacked".to_string()) && names.contains(&"a29.slices".to_string()),
        "{names:?}"
    );
    assert!(remote.counts()[0] <= 2 * ARRAYS, "{:?}", remote.counts());
    assert!(remote.in_flight.most() > 4);
}

/// "Nothing changed": a value that no item holds refuses the whole write, as does the end of the
/// file.
#[test]
fn a_write_that_is_refused_changes_nothing() {
    let fs = with_views(&store("<i2", ATTRIBUTES));
    let handle = open(&fs, "a.unpacked/data.raw");
    fs.change()
        .write(handle, 0, &bytes(&[10.0, 11.0, 12.0]))
        .unwrap();
    let before = read(&fs, handle, 0, 10_000);
    for value in [1e9, f64::INFINITY, 10.0 - 4.5] {
        let e = fs
            .change()
            .write(handle, 0, &bytes(&[1.0, 2.0, value]))
            .unwrap_err();
        assert_eq!(e.errno(), libc::EINVAL, "{e}");
        assert!(e.to_string().contains("/a.unpacked/data.raw: "), "{e}");
    }
    assert_eq!(
        fs.change()
            .write(handle, 8 * 105, &bytes(&[10.0]))
            .unwrap_err()
            .errno(),
        libc::EFBIG
    );
    assert_eq!(
        fs.change()
            .write_with(handle, 0, &bytes(&[10.0]), Wait::Allowed, true)
            .unwrap_err()
            .errno(),
        libc::EPERM
    );
    assert_eq!(read(&fs, handle, 0, 10_000), before);
    // the kernel cuts a long write at a page of the program's buffer: the rest follows
    let long = vec![0u8; (64 << 10) + 5];
    assert_eq!(
        fs.change().write(handle, 3, &long).unwrap_err().errno(),
        libc::EINVAL
    );
}

/// An open file of values follows changes of the shape and the attributes as the other files do.
#[test]
fn an_open_view_follows_its_array() {
    let memory = store("<i2", ATTRIBUTES);
    let fs = with_views(&memory);
    let fs = Fs {
        options: Options {
            resize: true,
            ..fs.options.clone()
        },
        ..fs
    };
    let flat = open(&fs, "a/data.raw");
    let view = open(&fs, "a.unpacked/data.raw");
    let size = |path: &str| fs.attributes(inode(&fs, path)).unwrap().size;
    assert_eq!(
        (size("a/data.raw"), size("a.unpacked/data.raw")),
        (210, 840)
    );
    // append two rows of the array through the view
    fs.change().write(view, 840, &bytes(&[11.5; 70])).unwrap();
    assert_eq!(
        (size("a/data.raw"), size("a.unpacked/data.raw")),
        (350, 1400)
    );
    assert_eq!(read(&fs, flat, 210, 1000), [3, 0].repeat(70));
    assert_eq!(read(&fs, view, 840, 10_000), bytes(&[11.5; 70]));
    // a partial row counts its values
    fs.change().write(view, 1400, &bytes(&[12.0; 3])).unwrap();
    assert_eq!(
        (size("a/data.raw"), size("a.unpacked/data.raw")),
        (356, 1424)
    );
    fs.change()
        .set_size(inode(&fs, "a.unpacked/data.raw"), 560, None)
        .unwrap();
    assert_eq!(
        (size("a/data.raw"), size("a.unpacked/data.raw")),
        (140, 560)
    );
    assert_eq!(
        fs.change()
            .set_size(inode(&fs, "a.unpacked/data.raw"), 9, None)
            .unwrap_err()
            .errno(),
        libc::EINVAL
    );
    fs.change().flush(view).unwrap();
    memory.insert(
        "a/.zattrs",
        br#"{"scale_factor":2,"_FillValue":-9}"#.to_vec(),
    );
    let again = open(&fs, "a.unpacked/data.raw");
    fs.change().write(again, 0, &bytes(&[8.0])).unwrap();
    assert_eq!(read(&fs, again, 0, 8), bytes(&[8.0]));
    assert_eq!(
        read(&fs, view, 0, 8),
        bytes(&[12.0]),
        "an open file keeps its packing"
    );
    // other items are another array
    let mut document = Vec::new();
    memory
        .get(&Key::root().join("a/.zarray"), 1 << 20, &mut document)
        .unwrap();
    memory.insert(
        "a/.zarray",
        String::from_utf8(document)
            .unwrap()
            .replace("<i2", ">i2")
            .into_bytes(),
    );
    open(&fs, "a/data.raw");
    let mut out = Vec::new();
    assert_eq!(
        fs.read(view, 0, 8, &mut out).unwrap_err().errno(),
        libc::ESTALE
    );
    assert_eq!(
        fs.change()
            .write(view, 0, &bytes(&[10.0]))
            .unwrap_err()
            .errno(),
        libc::ESTALE
    );
}

/// The holes of `data.raw` are holes of the view if their values are zero bytes.
#[test]
fn holes_are_those_whose_values_are_zeros() {
    for (attributes, is_hole) in [
        (r#"{"scale_factor":0.5,"add_offset":4.5}"#, true),
        (ATTRIBUTES, false),
    ] {
        let fs = with_views(&store("<i2", attributes));
        let handle = open(&fs, "a.unpacked/data.raw");
        fs.change().write(handle, 8 * 40, &bytes(&[1.0])).unwrap();
        assert_eq!(
            fs.seek(handle, 3, Seek::Data).unwrap(),
            3,
            "a map of the writer may have changed any byte"
        );
        let reader = fs
            .open(inode(&fs, "a.unpacked/data.raw"), false, false)
            .unwrap()
            .handle;
        let seek = |offset, target| fs.seek(reader, offset, target).map_err(|e| e.errno());
        // item 40 is in the second chunk, whose first item is 4
        let (data, hole) = if is_hole {
            (Ok(8 * 4), Ok(3))
        } else {
            (Ok(3), Ok(840))
        };
        fs.change().flush(handle).unwrap();
        fs.change().release(handle);
        assert_eq!(
            (seek(3, Seek::Data), seek(3, Seek::Hole)),
            (data, hole),
            "{attributes}"
        );
        assert_eq!(seek(840, Seek::Data), Err(libc::ENXIO));
    }
}

/// "Removing one changes nothing. A program that removes and creates it again writes into it": each
/// file of each view.
#[test]
fn files_of_views_are_removed_and_created_again() {
    let memory = store("<i2", ATTRIBUTES);
    let headers = Headers {
        formats: Format::ALL.to_vec(),
        ..Headers::default()
    };
    let fs = with_views(&memory);
    let fs = with_tree(fs, |tree| tree.with_headers(headers));
    let mut count = 0;
    for directory in ["a.unpacked", "a.slices/1"] {
        let parent = inode(&fs, directory);
        let listing = fs.open_directory(parent).unwrap();
        let mut names = vec!["data.hdr".to_string()];
        fs.read_directory(listing, 0, |name, _| {
            if ![".", ".."].contains(&name.name.as_str()) {
                names.push(name.name.clone());
            }
            false
        })
        .unwrap();
        for name in names {
            let path = format!("{directory}/{name}");
            for exclusive in [true, false] {
                let exists = fs.change().create(parent, &name, true, false, 0o644);
                assert_eq!(
                    exists.map(|_| ()).unwrap_err().errno(),
                    libc::EEXIST,
                    "{path}"
                );
                fs.change().unlink(parent, &name).unwrap();
                assert!(fs.absent_names().contains(parent, &name), "{path}");
                let (_, opened) = fs
                    .change()
                    .create(parent, &name, exclusive, true, 0o644)
                    .unwrap();
                assert!(!fs.absent_names().contains(parent, &name), "{path}");
                fs.change().flush(opened.handle).unwrap();
                fs.change().release(opened.handle);
                let before = fs.attributes(inode(&fs, &path)).unwrap().size;
                assert!(before > 0, "{path}");
                count += 1;
            }
        }
        // GDAL removes the header by its name, creates it by another, and opens it by the first
        for name in ["data.raw", "data.raw.hdr"] {
            fs.change().unlink(parent, name).unwrap();
        }
        for name in ["data.raw", "data.hdr"] {
            assert!(fs.absent_names().contains(parent, name), "{name}");
            let (_, opened) = fs
                .change()
                .create(parent, name, false, true, 0o644)
                .unwrap();
            fs.change().release(opened.handle);
        }
        assert!(!fs.absent_names().contains(parent, "data.raw.hdr"));
    }
    assert!(count > 20, "{count}");
}

/// A container that is open while its array becomes longer or shorter is as long as the mount shows
/// it.
#[test]
fn an_open_container_follows_the_length_of_its_array() {
    const NPY: u64 = 128;
    let memory = store("<i2", ATTRIBUTES);
    let fs = with_views(&memory);
    let fs = Fs {
        options: Options {
            resize: true,
            ..fs.options.clone()
        },
        ..fs
    };
    for (path, item) in [("a/data.npy", 2), ("a.unpacked/data.npy", 8)] {
        let flat = open(&fs, "a/data.raw");
        let npy = open(&fs, path);
        let unused = open(&fs, path);
        let size = || fs.attributes(inode(&fs, path)).unwrap().size;
        let before = size();
        assert_eq!(read(&fs, npy, 0, 10_000).len() as u64, before);
        let end = fs.attributes(inode(&fs, "a/data.raw")).unwrap().size;
        fs.change()
            .write(flat, end, &[3, 0].repeat(2 * 35))
            .unwrap();
        assert_eq!(size(), before + 70 * item);
        for handle in [npy, unused] {
            let last = if item == 2 {
                vec![8, 0]
            } else {
                bytes(&[12.0])
            };
            assert_eq!(
                fs.change().write(handle, size() - item, &last).unwrap(),
                last.len(),
                "{path}"
            );
            assert_eq!(read(&fs, handle, (size() - item) as usize, 100), last);
            assert_eq!(read(&fs, handle, 0, 10_000).len() as u64, size());
            let past = fs.change().write(handle, size(), &last).unwrap_err();
            assert_eq!(past.errno(), libc::EFBIG);
        }
        fs.change()
            .set_size(inode(&fs, "a/data.raw"), 70, None)
            .unwrap();
        assert_eq!(size(), NPY + 35 * item);
        let fresh = open(&fs, path);
        fs.change()
            .write(
                fresh,
                NPY,
                &if item == 2 {
                    vec![8, 0]
                } else {
                    bytes(&[12.0])
                },
            )
            .unwrap();
        for handle in [npy, unused, fresh] {
            assert_eq!(read(&fs, handle, 0, 10_000).len() as u64, size());
            fs.change().flush(handle).unwrap();
            fs.change().release(handle);
        }
        fs.change()
            .set_size(inode(&fs, "a/data.raw"), 210, None)
            .unwrap();
        fs.change().flush(flat).unwrap();
        fs.change().release(flat);
    }
    let fs = with_views(&memory);
    let flat = open(&fs, "a/data.raw");
    assert_eq!(read(&fs, flat, 0, 2), [4, 0]);
}
