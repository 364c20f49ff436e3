//! Random sequences of file operations on a mount and on a plain directory. Each call must return
//! the same on both, also on files that stay open while their names change, and both must hold the
//! same files in the end.

use crate::support;
use crate::support::{Mount, announce, errno};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

const SEQUENCES: u64 = 24;
const STEPS: usize = 250;
const DIRECTORIES: [&str; 4] = ["", "d", "d/e", "f"];
const NAMES: [&str; 4] = ["x", "x.lock", "y", "e"];
/// Number of files that are kept open.
const OPEN: usize = 4;

/// A generator of random numbers and paths.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as usize % n
    }

    fn path(&mut self) -> String {
        let directory = DIRECTORIES[self.below(4)];
        let name = NAMES[self.below(4)];
        [directory, name]
            .join("/")
            .trim_start_matches('/')
            .to_string()
    }
}

#[derive(Debug)]
enum Op {
    Write(String, Vec<u8>),
    CreateNew(String, Vec<u8>),
    Append(String, Vec<u8>),
    Truncate(String, u64),
    Read(String),
    Stat(String),
    Remove(String),
    Rename(String, String),
    MakeDirectory(&'static str),
    RemoveDirectory(String),
    List(&'static str),
    Open(usize, String),
    WriteOpen(usize, u64, Vec<u8>),
    ReadOpen(usize),
    TruncateOpen(usize, u64),
}

fn op(random: &mut Random) -> Op {
    let bytes = |c: &mut Random| vec![c.below(256) as u8; [0, 3, 5000, 70_000][c.below(4)]];
    let size = |c: &mut Random| [0, 2, 4096, 9000][c.below(4)] + c.below(3) as u64;
    match random.below(22) {
        0 | 1 => Op::Write(random.path(), bytes(random)),
        2 => Op::CreateNew(random.path(), bytes(random)),
        3 => Op::Append(random.path(), bytes(random)),
        4 => Op::Truncate(random.path(), size(random)),
        5 | 6 => Op::Read(random.path()),
        7 => Op::Stat(random.path()),
        8 => Op::Remove(random.path()),
        9..=12 => Op::Rename(random.path(), random.path()),
        13 => Op::Rename(
            DIRECTORIES[1 + random.below(3)].into(),
            DIRECTORIES[1 + random.below(3)].into(),
        ),
        14 => Op::MakeDirectory(DIRECTORIES[1 + random.below(3)]),
        15 => Op::RemoveDirectory(random.path()),
        16 => Op::List(DIRECTORIES[random.below(4)]),
        17 | 18 => Op::Open(random.below(OPEN), random.path()),
        19 => Op::WriteOpen(random.below(OPEN), size(random), bytes(random)),
        20 => Op::ReadOpen(random.below(OPEN)),
        _ => Op::TruncateOpen(random.below(OPEN), size(random)),
    }
}

/// The mount or the plain directory, and the files that are open in it.
struct Side {
    root: std::path::PathBuf,
    open: [Option<File>; OPEN],
}

fn digest(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    format!(
        "{} {}",
        bytes.len(),
        &support::hex(&Sha256::digest(bytes))[..12]
    )
}

fn describe<T>(result: std::io::Result<T>, show: impl FnOnce(T) -> String) -> String {
    match result {
        Ok(value) => show(value),
        e => errno(e),
    }
}

impl Side {
    fn new(root: &Path) -> Side {
        Side {
            root: root.to_path_buf(),
            open: [const { None }; OPEN],
        }
    }

    /// Carries out an operation and describes its result.
    fn run(&mut self, op: &Op) -> String {
        let path = |name: &str| {
            if name.is_empty() {
                self.root.clone()
            } else {
                self.root.join(name)
            }
        };
        let write = |mut file: File, bytes: &[u8]| file.write_all(bytes);
        let mut options = OpenOptions::new();
        options.write(true);
        match op {
            Op::Write(name, bytes) => errno(fs::write(path(name), bytes)),
            Op::CreateNew(name, bytes) => errno(
                options
                    .create_new(true)
                    .open(path(name))
                    .and_then(|f| write(f, bytes)),
            ),
            Op::Append(name, bytes) => errno(
                options
                    .append(true)
                    .open(path(name))
                    .and_then(|f| write(f, bytes)),
            ),
            Op::Truncate(name, size) => {
                errno(options.open(path(name)).and_then(|f| f.set_len(*size)))
            }
            Op::Read(name) => describe(fs::read(path(name)), |bytes| digest(&bytes)),
            Op::Stat(name) => describe(fs::metadata(path(name)), |m| {
                if m.is_dir() {
                    "directory".into()
                } else {
                    m.len().to_string()
                }
            }),
            Op::Remove(name) => errno(fs::remove_file(path(name))),
            Op::Rename(from, to) => errno(fs::rename(path(from), path(to))),
            Op::MakeDirectory(name) => errno(fs::create_dir(path(name))),
            Op::RemoveDirectory(name) => errno(fs::remove_dir(path(name))),
            Op::List(name) => describe(fs::read_dir(path(name)), |entries| {
                let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name()).collect();
                names.retain(|name| name != ".zgroup");
                names.sort();
                format!("{names:?}")
            }),
            Op::Open(n, name) => {
                let file = OpenOptions::new().read(true).write(true).open(path(name));
                let said = errno(
                    file.as_ref()
                        .map_err(|e| std::io::Error::from_raw_os_error(e.raw_os_error().unwrap())),
                );
                self.open[*n] = file.ok();
                said
            }
            Op::WriteOpen(n, at, bytes) => {
                self.with_open(*n, |f| errno(f.write_all_at(bytes, *at)))
            }
            Op::TruncateOpen(n, size) => self.with_open(*n, |f| errno(f.set_len(*size))),
            Op::ReadOpen(n) => self.with_open(*n, |f| {
                let mut bytes = vec![0; f.metadata().unwrap().len() as usize];
                describe(f.read_exact_at(&mut bytes, 0), |()| digest(&bytes))
            }),
        }
    }

    fn with_open(&self, n: usize, act: impl FnOnce(&File) -> String) -> String {
        self.open[n].as_ref().map_or_else(|| "not open".into(), act)
    }
}

/// Returns every file and directory below `root` with its bytes.
fn content(root: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap().map(|e| e.unwrap()) {
            let name = entry
                .path()
                .strip_prefix(root)
                .unwrap()
                .to_str()
                .unwrap()
                .to_string();
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
                all.insert(name, "directory".into());
            } else if entry.file_name() != ".zgroup" {
                all.insert(name, digest(&fs::read(entry.path()).unwrap()));
            }
        }
    }
    all
}

#[test]
fn file_operations_behave_as_in_a_plain_directory() {
    let mut counts = 0;
    let mut failures = 0;
    for seed in 1..=SEQUENCES {
        let store = tempfile::tempdir().unwrap();
        let plain = tempfile::tempdir().unwrap();
        fs::write(store.path().join(".zgroup"), "{\"zarr_format\": 2}").unwrap();
        let mount = Mount::new(store.path(), &[]);
        let mut sides = [Side::new(mount.path()), Side::new(plain.path())];
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for step in 0..STEPS {
            let op = op(&mut random);
            let [here, there] = sides.each_mut().map(|side| side.run(&op));
            let shown = format!("{op:?}");
            assert_eq!(here, there, "seed {seed}, step {step}: {:.80}", shown);
            counts += 1;
            failures += usize::from(here.starts_with('E'));
        }
        let wanted = content(plain.path());
        assert_eq!(content(mount.path()), wanted, "seed {seed}");
        drop((sides, mount));
        assert_eq!(content(store.path()), wanted, "seed {seed}");
    }
    announce(&format!(
        "{counts} calls answered alike, {failures} of them with an error"
    ));
    assert!(
        failures > counts / 10 && failures < counts * 9 / 10,
        "both must be tried"
    );
}
