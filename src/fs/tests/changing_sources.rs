//! Headers whose sources change: ENVI has no signed bytes, so the header of an array of such bytes
//! exists only while the attribute `_Unsigned` says that they are unsigned.

use super::with_tree;
use crate::fs::tests::mount_store;
use crate::fs::tree::Headers;
use crate::fs::*;
use std::path::Path;
use zarrfs_export::Format;
use zarrfs_store::DirectoryStore;

/// A writable mount of a directory with an array `t`, whose header exists.
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
        formats: vec![Format::Envi],
        ..Headers::default()
    };
    let case = Case {
        fs: with_tree(fs, |tree| tree.with_headers(headers)),
        directory,
    };
    case.store_array(true);
    case
}

impl Case {
    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Stores an array of signed bytes without values, as another program does.
    fn store_array(&self, is_unsigned: bool) {
        let path = self.path().join("t");
        std::fs::create_dir_all(&path).unwrap();
        let document = r#"{"zarr_format":2,"shape":[4],"chunks":[4],"dtype":"|i1","compressor":null,
            "fill_value":0,"order":"C","filters":null}"#;
        std::fs::write(path.join(".zarray"), document).unwrap();
        let text = format!(r#"{{"_Unsigned":"{is_unsigned}"}}"#);
        std::fs::write(path.join(".zattrs"), text).unwrap();
        self.forget();
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

/// `chmod` and `fstat` of a file that a program is copying, while another one changes what the file
/// describes.
#[test]
fn an_open_header_has_attributes_while_it_cannot_be_made() {
    let case = case();
    let header = case.lookup("t/data.raw.hdr").unwrap();
    let before = case.fs.attributes(header).unwrap();
    let handle = case.fs.open(header, true, false).unwrap().handle;
    case.store_array(false);
    let now = case.fs.attributes(header).unwrap();
    assert_eq!((now.inode, now.size), (header, before.size));
    let set = case.fs.change().set_size(header, 5, Some(handle)).unwrap();
    assert_eq!(set.inode, header);
    case.fs.change().release(handle);
    // the kernel looks again, and finds no such name
    assert_eq!(case.errno(case.fs.attributes(header)), libc::ESTALE);
    assert_eq!(case.errno(case.fs.open(header, true, false)), libc::ESTALE);
    assert_eq!(case.errno(case.lookup("t/data.raw.hdr")), libc::ENOENT);
}

#[test]
fn an_open_key_has_attributes_after_a_header_has_taken_its_name() {
    let case = case();
    case.store_array(false);
    let array = case.lookup("t").unwrap();
    let created = case
        .fs
        .change()
        .create(array, "data.raw.hdr", true, false, 0o644);
    let (attributes, opened) = created.unwrap();
    let inode = attributes.inode;
    let change = case.fs.change();
    assert_eq!(change.write(opened.handle, 0, b"ENVI").unwrap(), 4);
    case.store_array(true);
    case.fs.set_mode(inode, 0o600).unwrap();
    let now = case.fs.attributes(inode).unwrap();
    assert_eq!((now.inode, now.size), (inode, 4));
    let set = change.set_size(inode, 3, Some(opened.handle)).unwrap();
    assert_eq!((set.inode, set.size), (inode, 3));
    change.release(opened.handle);
    assert_eq!(case.lookup("t/data.raw.hdr").unwrap(), inode);
    assert!(case.fs.attributes(inode).unwrap().size > 100, "the header");
}

#[test]
fn coordinates_written_through_the_mount_are_described_at_once() {
    let case = case();
    for (name, shape, units) in [
        ("lat", "[4]", "degrees_north"),
        ("lon", "[4]", "degrees_east"),
        ("map", "[4,4]", "K"),
    ] {
        let path = case.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        let document = format!(
            r#"{{"zarr_format":2,"shape":{shape},"chunks":{shape},"dtype":"<f4","compressor":null,
            "fill_value":"NaN","order":"C","filters":null}}"#
        );
        std::fs::write(path.join(".zarray"), document).unwrap();
        let dimensions = if name == "map" {
            r#""lat","lon""#.to_string()
        } else {
            format!("{name:?}")
        };
        let text = format!(r#"{{"_ARRAY_DIMENSIONS":[{dimensions}],"units":{units:?}}}"#);
        std::fs::write(path.join(".zattrs"), text).unwrap();
    }
    case.forget();
    let open = |name: &str| {
        let flat = case.lookup(&format!("{name}/data.raw")).unwrap();
        case.fs.open(flat, true, false).unwrap().handle
    };
    let write = |handle, values: [f32; 4]| {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        case.fs.change().write(handle, 0, &bytes).unwrap();
    };
    let has_place = || {
        let header = case.lookup("map/data.raw.hdr").unwrap();
        let handle = case.fs.open(header, false, false).unwrap().handle;
        let mut text = Vec::new();
        case.fs.read(handle, 0, 1 << 16, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        case.fs.change().release(handle);
        text.contains("map info")
    };
    let [lat, lon] = ["lat", "lon"].map(open);
    write(lon, [1.0, 2.0, 3.0, 4.0]);
    assert!(!has_place());
    write(lat, [40.0, 30.0, 20.0, 10.0]);
    assert!(has_place());
    write(lat, [f32::NAN; 4]);
    assert!(!has_place());
}
