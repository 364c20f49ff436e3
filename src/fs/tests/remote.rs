//! Tests files of a remote store: no value is a local file, each lookup takes a request, and
//! another machine writes, too.

use crate::array::hierarchy::{ConsolidatedStore, Hierarchy, UseConsolidated};
use crate::fs::sync::MARGIN;
use crate::fs::tree::{FLAT, ROOT_INODE};
use crate::fs::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use zarrfs_format::metadata::V1Order;
use zarrfs_store::testing::{FaultyStore, Operation, PlannedFault, SimulatedRemote, UnlistedStore};
use zarrfs_store::{Capabilities, MemoryStore, MetadataCache, Readable, Store, delegate_store};

fn document(length: u64) -> String {
    format!(
        r#"{{"zarr_format":2,"shape":[{length}],"chunks":[8],"dtype":"|u1","compressor":{{"id":"zlib"}},"fill_value":9,
        "order":"C","filters":null}}"#
    )
}

/// A store that claims to be remote.
struct RemoteStore {
    below: Arc<dyn Store>,
}

impl Readable for RemoteStore {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            concurrency: 64,
            lists_all: self.below.lists_all(),
            ..Capabilities::default()
        }
    }

    delegate_store!(below: read stat list location);
}

impl Store for RemoteStore {
    delegate_store!(below: check_writable put_pieces change sync);
}

/// One of several machines that mount the same store.
struct Machine {
    fs: Arc<Fs>,
    requests: Arc<FaultyStore>,
}

impl Machine {
    fn over(store: Arc<dyn Store>) -> Self {
        let requests = Arc::new(FaultyStore::new(Arc::new(RemoteStore { below: store })));
        let stats = Arc::new(Stats::default());
        let cached = Arc::new(MetadataCache::new(requests.clone(), None));
        let store = ConsolidatedStore::over(cached, UseConsolidated::Auto, stats.clone()).unwrap();
        let cache = Arc::new(Cache::new(1 << 20, stats.clone()));
        let hierarchy = Hierarchy::new(store, V1Order::Zarr1, stats.clone());
        let spill = SpillOptions {
            directory: std::env::temp_dir(),
            limit: 0,
        };
        let options = Options {
            read_only: false,
            resize: false,
            threads: 2,
            direct_io: false,
            spill,
        };
        let fs = Fs::new(Tree::new(hierarchy, cache.clone()), cache, stats, options).unwrap();
        Machine {
            fs: Arc::new(fs),
            requests,
        }
    }

    fn new(memory: &Arc<MemoryStore>) -> Self {
        Machine::over(memory.clone())
    }

    fn directory(&self, path: &str) -> u64 {
        path.split('/')
            .filter(|p| !p.is_empty())
            .fold(ROOT_INODE, |at, p| self.fs.lookup(at, p).unwrap().inode)
    }

    /// Opens a file. Returns its inode number and its handle.
    fn open(&self, directory: &str, name: &str, write: bool) -> Result<(u64, u64)> {
        let inode = self.fs.lookup(self.directory(directory), name)?.inode;
        Ok((inode, self.fs.open(inode, write, false)?.handle))
    }

    fn read(&self, directory: &str, name: &str) -> Result<String> {
        let (_, handle) = self.open(directory, name, false)?;
        let read = self.read_open(handle);
        self.fs.change().release(handle);
        read
    }

    fn read_open(&self, handle: u64) -> Result<String> {
        let mut out = Vec::new();
        self.fs.read(handle, 0, 1 << 20, &mut out)?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    fn write_new(&self, directory: &str, name: &str, text: &str) -> Result<u64> {
        let (attributes, opened) =
            self.fs
                .change()
                .create(self.directory(directory), name, false, true, 0o644)?;
        self.fs.change().write(opened.handle, 0, text.as_bytes())?;
        self.close(opened.handle)?;
        Ok(attributes.inode)
    }

    fn close(&self, handle: u64) -> Result<()> {
        self.fs.change().flush(handle)?;
        self.fs.change().release(handle);
        Ok(())
    }

    fn rename(&self, from: (&str, &str), to: (&str, &str)) -> Result<()> {
        self.fs.change().rename(
            (self.directory(from.0), from.1),
            (self.directory(to.0), to.1),
            false,
        )
    }

    fn asked(&self) -> u64 {
        [Operation::Stat, Operation::Get, Operation::List]
            .into_iter()
            .map(|o| self.requests.calls(o))
            .sum()
    }
}

fn memory(values: &[(&str, &str)]) -> Arc<MemoryStore> {
    let memory = Arc::new(MemoryStore::default());
    values
        .iter()
        .for_each(|(key, value)| memory.insert(key, *value));
    memory
}

fn stored(memory: &MemoryStore, path: &str) -> Option<String> {
    let mut value = Vec::new();
    memory
        .get(&Key::normalize(path).unwrap(), 1 << 20, &mut value)
        .unwrap()?;
    Some(String::from_utf8_lossy(&value).into_owned())
}

const ROOT: (&str, &str) = (".zgroup", "{\"zarr_format\":2}");

#[test]
fn a_plain_key_is_written_anywhere_and_stored_when_it_is_closed() {
    let memory = memory(&[ROOT]);
    let m = Machine::new(&memory);
    let (a, opened) =
        m.fs.change()
            .create(ROOT_INODE, "notes.txt", false, false, 0o644)
            .unwrap();
    m.fs.change().write(opened.handle, 0, b"hello").unwrap();
    assert_eq!(stored(&memory, "notes.txt"), None);
    // reads and `stat` show written bytes before they are stored
    assert_eq!(m.read("", "notes.txt").unwrap(), "hello");
    m.fs.change().fsync(opened.handle).unwrap();
    assert_eq!(stored(&memory, "notes.txt").as_deref(), Some("hello"));
    m.fs.change().write(opened.handle, 5, b", you").unwrap();
    assert_eq!(
        (
            m.fs.attributes(a.inode).unwrap().size,
            m.fs.lookup(ROOT_INODE, "notes.txt").unwrap().size
        ),
        (10, 10)
    );
    m.close(opened.handle).unwrap();
    assert_eq!(stored(&memory, "notes.txt").as_deref(), Some("hello, you"));
    // "O_APPEND, truncate, reading while written", of an existing file
    let (inode, handle) = m.open("", "notes.txt", true).unwrap();
    let (_, reader) = m.open("", "notes.txt", false).unwrap();
    m.fs.change().write(handle, 10, b"!").unwrap();
    assert_eq!(m.read_open(reader).unwrap(), "hello, you!");
    assert_eq!(m.fs.change().set_size(inode, 5, None).unwrap().size, 5);
    assert_eq!(m.read_open(reader).unwrap(), "hello");
    m.close(handle).unwrap();
    m.close(reader).unwrap();
    m.fs.change().set_size(inode, 4, None).unwrap();
    assert_eq!(
        (
            stored(&memory, "notes.txt").as_deref(),
            m.fs.attributes(inode).unwrap().size
        ),
        (Some("hell"), 4)
    );
    m.fs.change().flush_all().unwrap();
    let (_, handle) = m.open("", "notes.txt", true).unwrap();
    m.fs.change().write(handle, 0, b"H").unwrap();
    m.fs.change().flush_all().unwrap();
    assert_eq!(
        stored(&memory, "notes.txt").as_deref(),
        Some("Hell"),
        "the mount ends while it is open"
    );
}

/// Editors and libraries save a file with such renames.
#[test]
fn writes_through_an_open_file_follow_its_rename() {
    let memory = memory(&[ROOT, ("a/.zarray", &document(8)), ("old.txt", "old")]);
    let m = Machine::new(&memory);
    let old = m.open("", "old.txt", false).unwrap();
    let (a, opened) =
        m.fs.change()
            .create(ROOT_INODE, "old.txt.tmp", true, false, 0o644)
            .unwrap();
    m.fs.change().write(opened.handle, 0, b"new").unwrap();
    m.rename(("", "old.txt.tmp"), ("", "old.txt")).unwrap();
    assert_eq!(m.fs.lookup(ROOT_INODE, "old.txt").unwrap().inode, a.inode);
    assert_eq!(
        (
            stored(&memory, "old.txt.tmp"),
            stored(&memory, "old.txt").as_deref()
        ),
        (None, Some("new"))
    );
    assert!(
        m.read_open(old.1).is_err(),
        "the store has it no more, and it must not be taken for the new one"
    );
    m.fs.change().write(opened.handle, 3, b"er").unwrap();
    m.close(opened.handle).unwrap();
    assert_eq!(
        (
            stored(&memory, "old.txt.tmp"),
            stored(&memory, "old.txt").as_deref()
        ),
        (None, Some("newer"))
    );
    // onto a chunk and onto a document: later writes through the open file would be lost
    for (name, text) in [("0", "01234567"), (".zattrs", "{\"a\": 1}")] {
        let (_, opened) =
            m.fs.change()
                .create(m.directory("a"), "x.partial", false, false, 0o644)
                .unwrap();
        m.fs.change()
            .write(opened.handle, 0, text.as_bytes())
            .unwrap();
        m.rename(("a", "x.partial"), ("a", name)).unwrap();
        assert_eq!(m.read("a", name).unwrap(), text);
        assert_eq!(
            m.fs.change()
                .write(opened.handle, 0, b"9")
                .unwrap_err()
                .errno(),
            libc::ESTALE
        );
        m.close(opened.handle).unwrap();
        assert_eq!(
            (
                stored(&memory, "a/x.partial"),
                m.read("a", name).unwrap().as_str()
            ),
            (None, text)
        );
    }
    // a chunk becomes a plain key
    m.rename(("a", "0"), ("", "chunk.bin")).unwrap();
    assert_eq!(
        (
            stored(&memory, "chunk.bin").as_deref(),
            stored(&memory, "a/0")
        ),
        (Some("01234567"), None)
    );
}

#[test]
fn a_file_that_is_removed_while_it_is_open_stays_removed() {
    let memory = memory(&[ROOT]);
    let m = Machine::new(&memory);
    let (a, opened) =
        m.fs.change()
            .create(ROOT_INODE, "scratch", true, false, 0o644)
            .unwrap();
    m.fs.change().write(opened.handle, 0, b"0123").unwrap();
    m.fs.change().unlink(ROOT_INODE, "scratch").unwrap();
    m.fs.change().write(opened.handle, 4, b"4").unwrap();
    assert_eq!(
        (
            m.fs.attributes(a.inode).unwrap().size,
            m.read_open(opened.handle).unwrap().as_str()
        ),
        (5, "01234")
    );
    assert_eq!(m.fs.change().set_size(a.inode, 2, None).unwrap().size, 2);
    let other = m.write_new("", "scratch", "other").unwrap();
    assert_ne!(other, a.inode);
    assert_eq!(
        (
            m.read_open(opened.handle).unwrap().as_str(),
            m.read("", "scratch").unwrap().as_str()
        ),
        ("01", "other")
    );
    m.close(opened.handle).unwrap();
    assert_eq!(stored(&memory, "scratch").as_deref(), Some("other"));
    assert_eq!(
        m.fs.change()
            .unlink(ROOT_INODE, "none")
            .unwrap_err()
            .errno(),
        libc::ENOENT
    );
}

/// "O_EXCL": only one of two machines creates the file.
#[test]
fn only_one_machine_creates_an_exclusive_file() {
    let memory = memory(&[ROOT]);
    let [a, b] = [Machine::new(&memory), Machine::new(&memory)];
    assert!(b.fs.lookup(ROOT_INODE, "lock").is_err());
    let (_, opened) =
        a.fs.change()
            .create(ROOT_INODE, "lock", true, false, 0o644)
            .unwrap();
    assert_eq!(
        b.fs.change()
            .create(ROOT_INODE, "lock", true, false, 0o644)
            .map(drop)
            .unwrap_err()
            .errno(),
        libc::EEXIST
    );
    a.close(opened.handle).unwrap();
    a.fs.change().unlink(ROOT_INODE, "lock").unwrap();
    b.fs.change()
        .create(ROOT_INODE, "lock", true, false, 0o644)
        .unwrap();
}

/// "open revalidates": with `--metadata-ttl forever`, too.
#[test]
fn changes_of_another_machine_are_visible_at_the_next_open() {
    let memory = memory(&[ROOT, ("a/.zarray", &document(8)), ("note", "1")]);
    let [a, b] = [Machine::new(&memory), Machine::new(&memory)];
    let flat = |m: &Machine| m.read("a", FLAT).unwrap();
    assert_eq!(
        (flat(&a), flat(&b).len(), a.read("", "note").unwrap()),
        ("\t".repeat(8), 8, "1".into())
    );
    assert_eq!(
        b.fs.lookup(b.directory("a"), "1").unwrap_err().errno(),
        libc::ENOENT
    );
    // change a chunk, a shape, a plain key, an attribute
    let (_, handle) = a.open("a", FLAT, true).unwrap();
    a.fs.change().write(handle, 0, b"01").unwrap();
    a.close(handle).unwrap();
    assert_eq!(flat(&b), format!("01{}", "\t".repeat(6)));
    a.write_new("a", ".zarray", &document(12)).unwrap();
    assert_eq!(flat(&b).len(), 12);
    a.write_new("", "note", "22").unwrap();
    assert_eq!(b.read("", "note").unwrap(), "22");
    let missed = || b.fs.lookup(b.directory("a"), ".zattrs").is_err();
    assert!(missed());
    a.write_new("a", ".zattrs", "{}").unwrap();
    assert!(missed(), "nothing of the array was opened since");
    flat(&b);
    assert_eq!(b.read("a", ".zattrs").unwrap(), "{}");
}

/// "opening and reading an array of n chunks must need at most 1.1 n requests": few of them are for
/// metadata.
#[test]
fn reading_takes_a_request_for_each_chunk_and_few_more() {
    let memory = memory(&[ROOT, ("a/.zarray", &document(8 * 100))]);
    let m = Machine::new(&memory);
    let (_, handle) = m.open("a", FLAT, true).unwrap();
    m.fs.change().write(handle, 0, &[7; 800]).unwrap();
    m.close(handle).unwrap();
    let stores: [Arc<dyn Store>; 2] =
        [memory.clone(), Arc::new(UnlistedStore::new(memory.clone()))];
    for store in stores {
        let m = Machine::over(store);
        m.fs.tree.hierarchy().check().unwrap();
        let (inode, handle) = m.open("a", FLAT, false).unwrap();
        let mut out = Vec::new();
        m.fs.read(handle, 0, 800, &mut out).unwrap();
        // two of the requests are for the documents of the root and of the array
        assert_eq!((out, m.requests.calls(Operation::Get)), (vec![7; 800], 102));
        let asked = m.asked();
        assert!(asked <= 110 + 10, "{asked}");
        // looking them up again takes hardly any request
        for _ in 0..10 {
            m.fs.attributes(inode).unwrap();
            m.fs.lookup(m.directory("a"), ".zarray").unwrap();
            m.fs.xattrs(inode, crate::fs::tree::Audience::Readers, None)
                .unwrap();
        }
        let more = m.asked() - asked;
        assert!(more <= 6, "{more}");
    }
}

#[test]
fn a_chunk_file_is_read_by_one_request() {
    let memory = memory(&[ROOT, ("a/.zarray", &document(16))]);
    let m = Machine::new(&memory);
    m.write_new("a", "1", "01234567").unwrap();
    let m = Machine::new(&memory);
    let (_, handle) = m.open("a", "1", false).unwrap();
    assert_eq!(m.read_open(handle).unwrap(), "01234567");
    // one request for the document, one for the chunk
    assert_eq!(m.requests.calls(Operation::Get), 2);
    assert_eq!(m.open("a", "0", false).unwrap_err().errno(), libc::ENOENT);
    m.fs.change().unlink(m.directory("a"), "1").unwrap();
    assert_eq!(m.read("a", "1").unwrap_err().errno(), libc::ENOENT);
}

/// "`ls -l` of 100,000 chunks must not send 100,000 HEADs".
#[test]
fn a_listing_includes_sizes() {
    let memory = memory(&[ROOT, ("a/.zarray", &document(8 * 5000))]);
    (0..5000).for_each(|i| memory.insert(&format!("a/{i}"), "?"));
    let m = Machine::new(&memory);
    let handle = m.fs.open_directory(m.directory("a")).unwrap();
    let before = m.asked();
    let mut sizes = 0;
    let mut at = 0;
    loop {
        let before = at;
        m.fs.read_directory_with_attributes(handle, at, |entry, next| {
            let full = at >= before + 100;
            if !full {
                sizes += u64::from(entry.name.name.parse::<u32>().is_ok()) * entry.attributes.size;
                at = next;
            }
            full
        })
        .unwrap();
        if at == before {
            break;
        }
    }
    assert_eq!(sizes, 8 * 5000);
    let asked = m.asked() - before;
    assert!(asked < 10, "{asked}");
}

/// "du/st_blocks and SEEK_HOLE must not pretend (unknown = data)".
#[test]
fn bytes_that_cannot_be_listed_count_as_data() {
    let memory = memory(&[ROOT, ("a/.zarray", &document(64).replace(":9", ":0"))]);
    let m = Machine::over(Arc::new(UnlistedStore::new(memory.clone())));
    let (inode, handle) = m.open("a", FLAT, false).unwrap();
    assert_eq!(
        (
            m.fs.seek(handle, 3, Seek::Data).unwrap(),
            m.fs.seek(handle, 3, Seek::Hole).unwrap()
        ),
        (3, 64)
    );
    assert_eq!(m.fs.attributes(inode).unwrap().blocks, 1);
    // a lookup finds a chunk only if it is stored
    memory.insert("a/1", "?");
    let a = m.directory("a");
    assert_eq!(
        (
            m.fs.lookup(a, "1").unwrap().size,
            m.fs.lookup(a, "2").is_err()
        ),
        (8, true)
    );
    let mut names = Vec::new();
    m.fs.read_directory(m.fs.open_directory(a).unwrap(), 2, |name, _| {
        names.push(name.name.clone());
        false
    })
    .unwrap();
    assert_eq!(names, [FLAT, ".zarray"]);
}

/// "A flush ends with the first failure while the server answers nothing"
#[test]
fn a_flush_sends_one_request_to_a_server_that_does_not_answer() {
    let names = ["a", "b", "c"];
    let memory = memory(&[ROOT]);
    names
        .iter()
        .for_each(|name| memory.insert(&format!("{name}/.zarray"), document(80)));
    let m = Machine::new(&memory);
    for name in names {
        let (_, handle) = m.open(name, FLAT, true).unwrap();
        m.fs.change().write(handle, 0, &[5; 80]).unwrap();
    }
    for operation in [Operation::Stat, Operation::Get, Operation::Put] {
        m.requests.plan(PlannedFault {
            times: u64::MAX,
            ..PlannedFault::next(operation, libc::EIO)
        });
    }
    let count = || {
        let before = m.asked() + m.requests.calls(Operation::Put);
        assert_eq!(m.fs.change().flush_all().unwrap_err().errno(), libc::EIO);
        m.asked() + m.requests.calls(Operation::Put) - before
    };
    // requests for each array, and for chunks of each; concurrent requests for one document are one
    assert!(count() >= 6);
    m.fs.stats.failing_stores.store(1, Ordering::Relaxed);
    assert_eq!(count(), 1);
    m.requests.heal();
    m.fs.change().flush_all().unwrap();
    assert!(
        names
            .iter()
            .all(|name| stored(&memory, &format!("{name}/9")).is_some())
    );
}

/// "A mount that a signal ends gives up after `--timeout` without any progress": sending the same
/// bytes again and again stores nothing.
#[test]
fn the_end_of_the_process_gives_up_where_bytes_are_sent_in_vain() {
    let memory = memory(&[ROOT, ("a/.zarray", &document(8))]);
    let m = Machine::new(&memory);
    m.fs.limit_syncs(Duration::from_secs(1));
    let (_, handle) = m.open("a", FLAT, true).unwrap();
    m.fs.change().write(handle, 0, &[5; 8]).unwrap();
    m.requests.plan(PlannedFault {
        times: u64::MAX,
        ..PlannedFault::next(Operation::Put, libc::EIO)
    });
    let begun = Instant::now();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(100) {
                m.fs.stats.bytes_sent.add(1);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let e = m.fs.sync_at_end().unwrap_err();
        is_over.store(true, Ordering::Relaxed);
        assert!(e.to_string().contains("a (1 chunk, 8 bytes)"), "{e}");
    });
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
}

/// "They wait while a server takes data", however long that takes.
#[test]
fn a_sync_waits_longer_than_its_limit_for_a_slow_server() {
    const CHUNKS: u64 = 400;
    let latency = Duration::from_millis(600);
    let limit = Duration::from_secs(2);
    let remote = Arc::new(SimulatedRemote::new(latency, true));
    remote.below.insert(".zgroup", ROOT.1);
    remote.below.insert("a/.zarray", document(8 * CHUNKS));
    let m = Machine::over(remote.clone());
    let (_, handle) = m.open("a", FLAT, true).unwrap();
    let bytes = vec![5; 8 * CHUNKS as usize];
    m.fs.change().write(handle, 0, &bytes).unwrap();
    m.fs.limit_syncs(limit);
    let before = remote.counts().iter().sum::<usize>();
    let begun = Instant::now();
    m.fs.sync_all().unwrap();
    assert!(begun.elapsed() > limit + MARGIN, "{:?}", begun.elapsed());
    assert_eq!(remote.puts.load(Ordering::SeqCst) as u64, CHUNKS);
    // the threads ask for the document once a second, all together
    let asked = remote.counts().iter().sum::<usize>() - before;
    assert!(asked as u64 <= begun.elapsed().as_secs() + 3, "{asked}");
}

/// "tries until --timeout", also where credentials are refused or space is missing.
#[test]
fn a_sync_tries_again_while_the_failure_may_pass() {
    let memory = memory(&[ROOT, ("a/.zarray", &document(8))]);
    let m = Machine::new(&memory);
    m.fs.limit_syncs(Duration::from_secs(60));
    let write = |byte| {
        let (_, handle) = m.open("a", FLAT, true).unwrap();
        m.fs.change().write(handle, 0, &[byte; 8]).unwrap();
    };
    for (byte, errno) in (5..).zip([libc::EACCES, libc::ENOSPC, libc::EFBIG, libc::EMFILE]) {
        write(byte);
        m.requests.plan(PlannedFault::next(Operation::Put, errno));
        m.fs.sync_all().unwrap();
        assert_eq!(m.fs.cache.unstored_total().0, 0);
    }
    write(9);
    m.requests
        .plan(PlannedFault::next(Operation::Put, libc::EROFS));
    assert_eq!(
        m.fs.sync_all().unwrap_err().errno(),
        libc::EROFS,
        "for good"
    );
    // at the end of the process it is lost
    m.requests
        .plan(PlannedFault::next(Operation::Put, libc::EROFS));
    m.fs.sync_at_end().unwrap();
}
