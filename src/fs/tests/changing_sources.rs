//! Headers whose coordinates change: a descriptor of GrADS, `data.ctl`, exists only while it can
//! state the positions of all items.

use crate::export::Format;
use crate::fs::tests::mount_store;
use crate::fs::tree::Headers;
use crate::fs::*;
use std::path::Path;
use zarrfs_store::DirectoryStore;

const LATITUDES: [f32; 4] = [10.0, 20.0, 30.0, 40.0];

/// A writable mount of a directory with an array `t` along `lat`.
struct Case {
    fs: Fs,
    directory: tempfile::TempDir,
}

fn case() -> Case {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(".zgroup"), r#"{"zarr_format":2}"#).unwrap();
    let store = DirectoryStore::open(directory.path()).unwrap();
    let fs = mount_store(Arc::new(store), 1 << 20, false);
    let headers = Headers {
        formats: vec![Format::Grads],
        ..Headers::default()
    };
    let case = Case {
        fs: Fs {
            tree: fs.tree.with_headers(headers),
            ..fs
        },
        directory,
    };
    case.store_array("t", "");
    case
}

impl Case {
    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Stores an array along `lat` without values, as another program does.
    fn store_array(&self, name: &str, attributes: &str) {
        let path = self.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        let document = r#"{"zarr_format":2,"shape":[4],"chunks":[4],"dtype":"<f4","compressor":null,
            "fill_value":"NaN","order":"C","filters":null}"#;
        std::fs::write(path.join(".zarray"), document).unwrap();
        let text = format!(r#"{{"_ARRAY_DIMENSIONS":["lat"]{attributes}}}"#);
        std::fs::write(path.join(".zattrs"), text).unwrap();
        self.forget();
    }

    fn store_latitudes(&self) {
        self.store_array("lat", r#","units":"degrees_north""#);
    }

    /// Forgets descriptions, as the mount does after a second.
    fn forget(&self) {
        self.fs.tree().document_changed();
    }

    fn lookup(&self, path: &str) -> Result<u64> {
        path.split('/')
            .try_fold(1, |parent, name| Ok(self.fs.lookup(parent, name)?.inode))
    }

    fn errno<T>(&self, result: Result<T>) -> i32 {
        result.map_or_else(|e| e.errno(), |_| 0)
    }
}

fn bytes_of(values: [f32; 4]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

#[test]
fn coordinates_written_through_the_mount_are_described_at_once() {
    let case = case();
    case.store_latitudes();
    assert_eq!(case.errno(case.lookup("t/data.ctl")), libc::ENOENT);
    let flat = case.lookup("lat/data.raw").unwrap();
    let handle = case.fs.open(flat, true, false).unwrap().handle;
    let write = |values| {
        case.fs
            .change()
            .write(handle, 0, &bytes_of(values))
            .unwrap()
    };
    write(LATITUDES);
    case.lookup("t/data.ctl").unwrap();
    write([f32::NAN; 4]);
    assert_eq!(case.errno(case.lookup("t/data.ctl")), libc::ENOENT);
}

/// `chmod` and `fstat` of a file that a program is copying, while another one copies what the file
/// describes.
#[test]
fn an_open_header_has_attributes_while_it_cannot_be_made() {
    let case = case();
    let header = case.lookup("t/data.ctl").unwrap();
    let before = case.fs.attributes(header).unwrap();
    let handle = case.fs.open(header, true, false).unwrap().handle;
    case.store_latitudes();
    let now = case.fs.attributes(header).unwrap();
    assert_eq!((now.inode, now.size), (header, before.size));
    let set = case.fs.change().set_size(header, 5, Some(handle)).unwrap();
    assert_eq!(set.inode, header);
    case.fs.change().release(handle);
    // the kernel looks again, and finds no such name
    assert_eq!(case.errno(case.fs.attributes(header)), libc::ESTALE);
    assert_eq!(case.errno(case.fs.open(header, true, false)), libc::ESTALE);
    assert_eq!(case.errno(case.lookup("t/data.ctl")), libc::ENOENT);
}

#[test]
fn an_open_key_has_attributes_after_a_header_has_taken_its_name() {
    let case = case();
    case.store_latitudes();
    let array = case.lookup("t").unwrap();
    let created = case.fs.change().create(array, "data.ctl", true, false);
    let (attributes, opened) = created.unwrap();
    let inode = attributes.inode;
    let change = case.fs.change();
    assert_eq!(change.write(opened.handle, 0, b"DSET").unwrap(), 4);
    std::fs::write(case.path().join("lat/0"), bytes_of(LATITUDES)).unwrap();
    case.forget();
    case.fs.set_mode(inode, 0o600).unwrap();
    let now = case.fs.attributes(inode).unwrap();
    assert_eq!((now.inode, now.size), (inode, 4));
    let set = change.set_size(inode, 3, Some(opened.handle)).unwrap();
    assert_eq!((set.inode, set.size), (inode, 3));
    change.release(opened.handle);
    assert_eq!(case.lookup("t/data.ctl").unwrap(), inode);
    assert!(case.fs.attributes(inode).unwrap().size > 100, "the header");
}
