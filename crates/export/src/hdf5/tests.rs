//! Groups of a store in memory as HDF5 files, whose structure a reader of the specification's rules
//! follows from the superblock on.

use super::*;
use crate::PartContent;
use crate::testing::hierarchy;
use std::collections::HashSet;
use zarrfs_format::codec::lookup3;

/// A file, and its own bytes.
struct Walked {
    file: Composite,
    own: Vec<u8>,
    /// The paths of all objects, each with the kinds of its messages.
    objects: BTreeMap<String, Vec<u8>>,
}

impl Walked {
    fn new(hierarchy: &dyn HierarchyReader, key: &str) -> Walked {
        let key = Key::normalize(key).unwrap();
        let file = file_of_group(hierarchy, &key).unwrap();
        let PartContent::Bytes(own) = &file.parts()[0].content else {
            panic!("no header");
        };
        let mut walked = Walked {
            own: own.to_vec(),
            file: file.clone(),
            objects: BTreeMap::new(),
        };
        assert!(walked.own.starts_with(b"\x89HDF\r\n\x1a\n"));
        walked.check(0, SUPERBLOCK);
        // "End of File Address"
        assert_eq!(walked.number(28), file.size());
        walked.visit(walked.number(36) as usize, String::new());
        walked
    }

    fn number(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.own[at..at + 8].try_into().unwrap())
    }

    /// Checks that a checksum ends the bytes.
    fn check(&self, from: usize, len: usize) {
        let (bytes, checksum) = self.own[from..from + len].split_at(len - 4);
        assert_eq!(lookup3(bytes, 0).to_le_bytes(), checksum);
    }

    fn visit(&mut self, at: usize, path: String) {
        assert_eq!(&self.own[at..at + 6], b"OHDR\x02\x02", "{path}");
        let len = u32::from_le_bytes(self.own[at + 6..at + 10].try_into().unwrap()) as usize;
        self.check(at, 10 + len + 4);
        let mut kinds = Vec::new();
        let mut at = at + 10;
        let end = at + len;
        while at < end {
            let size = usize::from(u16::from_le_bytes([self.own[at + 1], self.own[at + 2]]));
            kinds.push(self.own[at]);
            let content = at + 4;
            match self.own[at] {
                // a link: version, flags, order, character set, length of the name
                6 => {
                    let name_at = content + 13;
                    let name = &self.own[name_at..content + size - 8];
                    let name = format!("{path}/{}", str::from_utf8(name).unwrap());
                    let address = self.number(content + size - 8) as usize;
                    self.visit(address, name);
                }
                // values lie in the file, each array in pages of its own
                8 => {
                    let (place, size) = (self.number(content + 2), self.number(content + 10));
                    let is_inside = place % ALIGNMENT == 0
                        && place >= self.own.len() as u64
                        && place + size <= self.file.size();
                    assert!(is_inside || place == UNDEFINED && size == 0, "{path}");
                }
                _ => {}
            }
            at = content + size;
        }
        assert_eq!(at, end, "{path}");
        assert!(self.objects.insert(path.clone(), kinds).is_none(), "{path}");
    }

    fn paths(&self) -> Vec<&str> {
        self.objects.keys().map(String::as_str).collect()
    }
}

fn dims(names: &str) -> String {
    format!(r#"{{"_ARRAY_DIMENSIONS": {names}}}"#)
}

#[test]
fn everything_below_a_group_is_linked() {
    let h = hierarchy(&[
        ("a", "\"<i2\"", &[2], "{}"),
        ("g/x", "\"<f8\"", &[3], &dims(r#"["x"]"#)),
        ("g/t", "\"<f4\"", &[3, 4], &dims(r#"["x", "y"]"#)),
        ("g/inner/t", "\"<f2\"", &[3, 5], &dims(r#"["x", "y"]"#)),
        ("g/inner/short", "\"|b1\"", &[6], &dims(r#"["y"]"#)),
        ("s", "\"|S3\"", &[], "{}"),
    ]);
    h.insert("g/.zgroup", r#"{"zarr_format":2}"#);
    h.insert("g/inner/.zgroup", r#"{"zarr_format":2}"#);
    let walked = Walked::new(&h, "");
    assert_eq!(
        walked.paths(),
        [
            "",
            "/a",
            "/dim_2",
            "/g",
            "/g/inner",
            "/g/inner/short",
            "/g/inner/t",
            "/g/inner/y",
            "/g/inner/y_5",
            "/g/t",
            "/g/x",
            "/g/y",
            "/s"
        ]
    );
    assert_eq!(
        Walked::new(&h, "g/inner").paths(),
        ["", "/short", "/t", "/x", "/y", "/y_5"]
    );
}

#[test]
fn what_hdf5_cannot_hold_is_named() {
    let long = format!(
        r#"{{"long": "{}", "CLASS": "x", "n": 1}}"#,
        "x".repeat(70_000)
    );
    let h = hierarchy(&[
        ("good", "\"<i4\"", &[2], &long),
        ("empty", "\"<i4\"", &[0, 3], "{}"),
        ("odd", "\"|O\"", &[2], "{}"),
        ("extended", "\"<f16\"", &[2], "{}"),
        ("huge", "\"<f8\"", &[1 << 59], "{}"),
        ("huge2", "\"<f8\"", &[1 << 59], "{}"),
        ("overflow", "\"<f8\"", &[1 << 62, 1 << 62, 0], "{}"),
        (
            "struct",
            r#"[["a", "<i4"], ["b", "<f2", [2, 2]]]"#,
            &[2],
            "{}",
        ),
    ]);
    h.insert("damaged/.zarray", "{");
    let walked = Walked::new(&h, "");
    let left_out: HashSet<&str> = walked
        .file
        .left_out
        .iter()
        .filter_map(|line| Some(line.split_once(": ")?.0))
        .collect();
    assert_eq!(
        left_out,
        HashSet::from([
            "attribute long of /good",
            "damaged",
            "empty",
            "odd",
            "extended",
            "huge2",
            "overflow",
        ])
    );
    assert!(walked.paths().contains(&"/struct"));
    // the long attribute and that of a scale are missing
    let attributes = walked.objects["/good"].iter().filter(|kind| **kind == 12);
    assert_eq!(attributes.count(), 2, "n, and the dimension");
    let e = file_of_group(&h, &Key::normalize("good").unwrap()).unwrap_err();
    assert_eq!(e.kind(), zarrfs_base::error::Kind::NotFound);
}

/// A name that netCDF does not permit may be replaced with a name that the file itself uses.
#[test]
fn an_object_has_no_two_attributes_of_one_name() {
    let h = hierarchy(&[("a", "\"<i4\"", &[2], "{}")]);
    h.insert(
        ".zattrs",
        r#"{"zarrfs/left_out": 1, "/NCProperties": 2, "a/b": 3, "a_b": 4}"#,
    );
    let walked = Walked::new(&h, "");
    assert_eq!(
        walked.file.left_out,
        ["_NCProperties", "zarrfs_left_out"].map(|name| format!(
            "attribute {name} of /: the file has an attribute of this name itself"
        ))
    );
    // `a_b`, `a_b_2`, and the attributes of the file itself
    let attributes = walked.objects[""].iter().filter(|kind| **kind == 12);
    assert_eq!(attributes.count(), 4);
}

#[test]
fn ten_thousand_arrays_and_deep_groups_are_linked() {
    let names: Vec<String> = (0..10_000).map(|n| format!("v{n}")).collect();
    let arrays = names
        .iter()
        .map(|name| (name.as_str(), "\"<f4\"", &[7u64][..], "{}"));
    let h = hierarchy(&arrays.collect::<Vec<_>>());
    let mut path = String::new();
    for _ in 0..100 {
        path += "d/";
        h.insert(&format!("{path}.zgroup"), r#"{"zarr_format":2}"#);
    }
    assert_eq!(Walked::new(&h, "").paths().len(), 1 + 10_000 + 1 + 100);
}

/// Returns the sequences and the heap of strings, with their address; `None` for flat bytes.
fn strings_of(file: &Composite, name: &str) -> Option<(Arc<[u8]>, u64)> {
    let of_array = file.parts().iter().find_map(|part| match &part.content {
        PartContent::Values { key, bytes } if key.as_str() == name => {
            Some(Some((bytes.clone(), part.at)))
        }
        PartContent::Flat { key, .. } if key.as_str() == name => Some(None),
        _ => None,
    });
    of_array.unwrap()
}

#[test]
fn texts_lie_in_a_heap_and_other_bytes_do_not() {
    let h = hierarchy(&[
        ("ascii", "\"|S3\"", &[2], "{}"),
        ("utf8", "\"|S3\"", &[1], r#"{"_Encoding": "utf-8"}"#),
        ("ucs4", "\"<U2\"", &[2], "{}"),
        ("letters", "\"|S1\"", &[1], "{}"),
        ("zero", "\"|S3\"", &[1], "{}"),
        ("latin", "\"|S3\"", &[1], "{}"),
        ("large", "\"|S100000\"", &[50], "{}"),
        ("damaged", "\"|S3\"", &[1], "{}"),
    ]);
    let e_acute = u32::from('é').to_le_bytes();
    for (key, bytes) in [
        ("ascii/0", &b"abc"[..]),
        ("ascii/1", b"d\0\0"),
        ("utf8/0", "日".as_bytes()),
        ("ucs4/0", &[e_acute, e_acute].concat()),
        ("zero/0", b"a\0b"),
        ("latin/0", b"\xe9\0\0"),
        ("damaged/0", b"a"),
    ] {
        h.insert(key, bytes);
    }
    let walked = Walked::new(&h, "");
    for (name, expected) in [
        ("ascii", &["abc", "d"][..]),
        ("utf8", &["日"]),
        ("ucs4", &["éé", ""]),
    ] {
        let (bytes, address) = strings_of(&walked.file, name).unwrap();
        let (sequences, heap) = bytes.split_at(SEQUENCE * expected.len());
        let heap_at = address + sequences.len() as u64;
        for (sequence, text) in sequences.chunks(SEQUENCE).zip(expected) {
            let found = heap::tests::object(heap, heap_at, sequence);
            assert_eq!(found, text.as_bytes(), "{name}");
            assert_eq!(sequence[..4], (text.len() as u32).to_le_bytes());
        }
    }
    for name in ["letters", "zero", "latin", "large", "damaged"] {
        assert!(strings_of(&walked.file, name).is_none(), "{name}");
    }
    // readers decode strings of HDF5 themselves
    assert!(!walked.own.windows(9).any(|bytes| bytes == b"_Encoding"));
}
