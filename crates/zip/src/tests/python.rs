//! Archives that Python creates with each mode of `zipfile`, and with zarr.

use super::*;
use std::path::Path;
use std::process::Command;

const ARCHIVES: &str = r#"
import sys, zipfile, io
home, value = sys.argv[1], bytes(range(256)) * 40
def make(name, method=zipfile.ZIP_STORED, comment=b'', out=None, **more):
    with zipfile.ZipFile(out or f'{home}/{name}', 'w', method) as z:
        z.comment = comment
        z.mkdir('a') if hasattr(z, 'mkdir') else z.writestr('a/', b'')
        for i in range(30):
            with z.open(f'a/{i}', 'w', **more) as f:
                f.write(bytes([i]) + value)
        z.writestr('a/ü', value)
        z.writestr('a/0', b'last')
make('stored.zip')
make('deflated.zip', zipfile.ZIP_DEFLATED, b'PK\5\6 in a comment')
make('large.zip', zipfile.ZIP_DEFLATED, force_zip64=True)
class Pipe(io.RawIOBase):
    # no seek: sizes follow the data
    def __init__(self, path): self.file = open(path, 'wb')
    def writable(self): return True
    def write(self, b): return self.file.write(b)
    def flush(self): self.file.flush()
make('', zipfile.ZIP_DEFLATED, out=Pipe(f'{home}/piped.zip'))
zipfile.ZIP_FILECOUNT_LIMIT = 5
make('many.zip')
try:
    import zarr
    store = zarr.ZipStore(f'{home}/zarr.zip', mode='w')
    zarr.array(list(range(1000)), chunks=100, compressor=None, store=store, dtype='<i4')
    store.close()
except (ImportError, AttributeError):
    pass
"#;

fn make(home: &Path) -> bool {
    let Some(python) = std::env::var_os("ZARRFS_TEST_PYTHON") else {
        println!("skipped: ZARRFS_TEST_PYTHON not set, run scripts/test");
        return false;
    };
    let made = Command::new(python)
        .args(["-W", "ignore", "-c", ARCHIVES])
        .arg(home)
        .status()
        .unwrap();
    assert!(made.success());
    true
}

#[test]
fn archives_made_by_zipfile_are_read() {
    let home = tempfile::tempdir().unwrap();
    if !make(home.path()) {
        return;
    }
    let value: Vec<u8> = (0..40).flat_map(|_| 0..=255u8).collect();
    for name in [
        "stored.zip",
        "deflated.zip",
        "large.zip",
        "piped.zip",
        "many.zip",
    ] {
        for store in both(&std::fs::read(home.path().join(name)).unwrap())
            .stores
            .map(Result::unwrap)
        {
            assert_eq!(
                (names(&store, "").len(), names(&store, "a").len()),
                (1, 31),
                "{name}"
            );
            assert_eq!(
                (
                    get(&store, "a/0").unwrap().unwrap(),
                    get(&store, "a/ü").unwrap().unwrap()
                ),
                (b"last".to_vec(), value.clone())
            );
            for i in 1..30 {
                let expected = [&[i], &value[..]].concat();
                assert_eq!(
                    get(&store, &format!("a/{i}")).unwrap().unwrap(),
                    expected,
                    "{name}"
                );
                assert_eq!(
                    part(&store, &format!("a/{i}"), 77..999).unwrap().unwrap(),
                    expected[77..999],
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn an_array_in_an_archive_made_by_zarr_is_read() {
    let home = tempfile::tempdir().unwrap();
    if !make(home.path()) || !home.path().join("zarr.zip").exists() {
        return;
    }
    let store = ZipStore::open(
        Arc::new(DirectoryStore::open(home.path()).unwrap()),
        &key("zarr.zip"),
    )
    .unwrap();
    assert_eq!(names(&store, "").len(), 11);
    for i in 0..10i32 {
        let chunk: Vec<u8> = (100 * i..100 * (i + 1))
            .flat_map(i32::to_le_bytes)
            .collect();
        assert_eq!(get(&store, &i.to_string()).unwrap().unwrap(), chunk);
    }
    let age = SystemTime::now()
        .duration_since(store.stat(&key("0")).unwrap().unwrap().modified)
        .unwrap_or_default();
    assert!(age < Duration::from_secs(2 * 24 * 3600), "{age:?}");
}
