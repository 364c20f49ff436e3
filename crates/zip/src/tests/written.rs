//! Archives that this crate writes: read by this crate, and by Python's `zipfile`.

use super::*;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use zarrfs_store::{COPIED_PART as PART, ValueStart, delegate_store};

/// Returns a writer of `home/x.zip`.
fn writer(home: &Path) -> ZipWriter {
    let records = tempfile::tempfile_in(home).unwrap();
    ZipWriter::new(File::create(home.join("x.zip")).unwrap(), records)
}

fn add(writer: &mut ZipWriter, store: &dyn Store, name: &str) -> Result<()> {
    let start = ValueStart::read(store, &key(name))?.unwrap();
    writer.add(store, &key(name), start)
}

fn opened(home: &Path) -> ZipStore {
    let local = Arc::new(DirectoryStore::open(home).unwrap());
    ZipStore::open(local, &key("x.zip")).unwrap()
}

/// Runs a script with `home/x.zip` opened as `z`, and returns what it prints.
fn python(home: &Path, script: &str) -> Option<String> {
    let Some(python) = std::env::var_os("ZARRFS_TEST_PYTHON") else {
        println!("skipped: ZARRFS_TEST_PYTHON not set, run scripts/test");
        return None;
    };
    let script = format!("import zipfile\nz = zipfile.ZipFile('x.zip')\n{script}");
    let output = Command::new(python)
        .args(["-c", &script])
        .current_dir(home)
        .output()
        .unwrap();
    let failure = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{failure}");
    Some(String::from_utf8(output.stdout).unwrap().trim().to_string())
}

#[test]
fn values_are_copied_in_order() {
    let home = tempfile::tempdir().unwrap();
    let large: Vec<u8> = (0..2 * PART as u32 + 77).map(|i| (i / 5) as u8).collect();
    let values = [
        ("zarr.json", &b"{}"[..]),
        ("a/c/0", &large),
        ("a/\u{e9}", b"e"),
        ("a/c/1", b""),
        ("last", b"of all"),
    ];
    let memory = MemoryStore::default();
    for (name, value) in values {
        memory.insert(name, value);
    }
    let mut archives = Vec::new();
    for comment in [&b"a comment"[..], b"a comment", b""] {
        let mut writer = writer(home.path());
        for (name, _) in values {
            add(&mut writer, &memory, name).unwrap();
        }
        assert_eq!(writer.count(), 5);
        writer.finish(comment).unwrap();
        archives.push(std::fs::read(home.path().join("x.zip")).unwrap());
        let store = opened(home.path());
        for (name, value) in values {
            let copied = part(&store, name, 0..4 * PART).unwrap().unwrap();
            assert!(copied == value, "{name}");
        }
        assert_eq!(names(&store, "a"), ["c/", "\u{e9}"]);
    }
    assert!(archives[0] == archives[1] && archives[0] != archives[2]);
    let listed = "print(z.testzip(), [(i.filename, i.compress_type, oct(i.external_attr >> 16)) for i in z.infolist()])";
    let member = |name: &str| format!("('{name}', 0, '0o100644')");
    let all = values.map(|(name, _)| member(name)).join(", ");
    if let Some(printed) = python(home.path(), listed) {
        assert_eq!(printed, format!("None [{all}]"));
    }
    let too_long = writer(home.path()).finish(&[b'x'; 1 << 16]);
    assert_eq!(too_long.unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn counts_and_offsets_have_64_bits() {
    const COUNT: usize = 70_000;
    let home = tempfile::tempdir().unwrap();
    let memory = MemoryStore::default();
    let mut archive = writer(home.path());
    for i in 0..COUNT {
        let name = format!("a/{i}");
        memory.insert(&name, i.to_le_bytes());
        add(&mut archive, &memory, &name).unwrap();
    }
    // a hole in the place of a value
    archive.write_headers("large", 5 << 30, 0).unwrap();
    memory.insert("behind", "5 GiB");
    add(&mut archive, &memory, "behind").unwrap();
    archive.finish(b"").unwrap();
    let store = opened(home.path());
    assert_eq!(names(&store, "a").len(), COUNT);
    let last = format!("a/{}", COUNT - 1);
    assert_eq!(
        get(&store, &last).unwrap().unwrap(),
        (COUNT - 1).to_le_bytes()
    );
    assert_eq!(get(&store, "behind").unwrap().unwrap(), b"5 GiB");
    assert_eq!(store.stat(&key("large")).unwrap().unwrap().size, 5 << 30);
    let script = "i = z.getinfo('behind')\nprint(len(z.infolist()), z.getinfo('large').file_size >> 30, i.header_offset >> 30, z.read(i))";
    if let Some(printed) = python(home.path(), script) {
        assert_eq!(printed, format!("{} 5 5 b'5 GiB'", COUNT + 2));
    }
}

/// A store in which another program replaces the value of `x` after some reads, each time.
struct ReplacedStore {
    inner: MemoryStore,
    reads: AtomicUsize,
    /// The numbers of the reads before which the value is replaced.
    replaced: std::ops::Range<usize>,
}

impl Readable for ReplacedStore {
    delegate_store!(inner: stat list location);

    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        if let ByteRange::Whole(_) = range {
            return self.inner.read(key, range, value);
        }
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        if self.replaced.contains(&read) {
            self.inner
                .insert("x", vec![read as u8; PART as usize + 50 - read]);
        }
        self.inner.read(key, range, value)
    }
}

impl Store for ReplacedStore {}

#[test]
fn a_member_is_of_one_version_of_a_value() {
    let home = tempfile::tempdir().unwrap();
    let copied = |replaced| {
        let inner = MemoryStore::default();
        inner.insert("x", vec![9; PART as usize + 9]);
        inner.insert("y", "y");
        let store = ReplacedStore {
            inner,
            reads: AtomicUsize::new(0),
            replaced,
        };
        let mut writer = writer(home.path());
        add(&mut writer, &store, "x")?;
        add(&mut writer, &store.inner, "y")?;
        writer.finish(b"")?;
        let archive = opened(home.path());
        assert_eq!(get(&archive, "y")?.unwrap(), b"y");
        Ok::<_, Error>(part(&archive, "x", 0..2 * PART)?.unwrap())
    };
    assert!(copied(0..0).unwrap() == vec![9; PART as usize + 9]);
    assert!(copied(1..2).unwrap() == vec![1; PART as usize + 49]);
    assert!(copied(1..4).unwrap() == vec![3; PART as usize + 47]);
    let e = copied(1..100).map(|value| value.len()).unwrap_err();
    assert_eq!(e.message(), "/x: changes faster than it can be read");
}
