use super::*;
use crate::testing::{FaultyStore, Operation, PlannedFault, UnlistedStore};
use crate::{FirstNames, MemoryStore, ValuePage, ValuePages, delegate_store};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;
use zarrfs_base::error::Error;

const LONG: Option<Duration> = Some(Duration::from_secs(3600));

struct Case {
    memory: Arc<MemoryStore>,
    counted: Arc<FaultyStore>,
    store: MetadataCache,
}

fn case(values: &[&str], ttl: Option<Duration>) -> Case {
    let memory = Arc::new(MemoryStore::default());
    values
        .iter()
        .for_each(|key| memory.insert(key, key.as_bytes()));
    let counted = Arc::new(FaultyStore::new(memory.clone()));
    let store = MetadataCache::new(counted.clone(), ttl);
    Case {
        memory,
        counted,
        store,
    }
}

fn key(path: &str) -> Key {
    Key::normalize(path).unwrap()
}

impl Case {
    fn size(&self, path: &str) -> Option<u64> {
        self.store.stat(&key(path)).unwrap().map(|stat| stat.size)
    }

    fn text(&self, path: &str) -> Option<String> {
        let mut value = Vec::new();
        self.store
            .get(&key(path), 1 << 20, &mut value)
            .unwrap()
            .map(|_| String::from_utf8(value).unwrap())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = self
            .store
            .list(&key(path))
            .unwrap()
            .map(|e| e.unwrap().name)
            .collect();
        names.sort();
        names
    }

    /// Returns the number of requests for metadata, values and listings.
    fn asked(&self) -> [u64; 3] {
        [Operation::Stat, Operation::Get, Operation::List]
            .map(|operation| self.counted.calls(operation))
    }
}

#[test]
fn metadata_is_cached_and_values_only_after_their_metadata() {
    let c = case(&["a/x", "a/y"], None);
    for _ in 0..3 {
        assert_eq!(
            (c.size("a/x"), c.size("none"), c.size("a")),
            (Some(3), None, Some(0))
        );
        assert_eq!(
            (c.text("a/x").as_deref(), c.text("none"), c.names("a").len()),
            (Some("a/x"), None, 2)
        );
    }
    assert_eq!(c.asked(), [3, 1, 1]);
    assert_eq!((c.text("a/z"), c.text("a/z")), (None, None));
    c.memory.insert("a/z", "new");
    assert_eq!(
        c.text("a/z").as_deref(),
        Some("new"),
        "it was never looked at"
    );
    assert_eq!(c.asked(), [3, 4, 1]);
}

#[test]
fn a_large_value_is_not_cached_and_limits_hold() {
    let c = case(&[], None);
    c.memory.insert("large", vec![b'x'; MAX_VALUE + 1]);
    c.memory.insert("small", "0123");
    for _ in 0..2 {
        assert_eq!(
            (c.size("large"), c.text("large").unwrap().len()),
            (Some(65537), 65537)
        );
        assert_eq!(
            (c.size("small"), c.text("small").unwrap().len()),
            (Some(4), 4)
        );
    }
    assert_eq!(c.asked()[1], 3);
    assert!(c.store.get(&key("small"), 3, &mut Vec::new()).is_err());
}

#[test]
fn expired_entries_are_requested_again() {
    let c = case(&["a/x"], Some(Duration::from_millis(20)));
    assert_eq!(
        (c.size("a/x"), c.size("b"), c.names("a").len()),
        (Some(3), None, 1)
    );
    c.memory.insert("a/x", "longer");
    c.memory.insert("b", "");
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(
        (c.size("a/x"), c.size("b"), c.names("a").len()),
        (Some(6), Some(0), 1)
    );
    assert_eq!(c.asked(), [4, 0, 2]);
}

#[test]
fn forgotten_entries_are_requested_again_but_unchanged_values_are_not() {
    let c = case(&["a/x", "a/y", "b/x"], None);
    let all = || [c.text("a/x"), c.text("a/y"), c.text("b/x")].map(Option::unwrap);
    let look = || ["a/x", "a/y", "b/x"].map(|path| c.size(path).unwrap());
    assert_eq!(
        (look(), all().concat(), c.names("a").len(), c.size("a/z")),
        ([3; 3], "a/xa/yb/x".into(), 2, None)
    );
    c.memory.insert("a/y", "new");
    c.memory.insert("a/z", "");
    c.memory.insert("b/x", "unseen");
    c.store.forget(&key("a"));
    assert_eq!(
        (look(), all()),
        ([3, 3, 3], ["a/x".into(), "new".into(), "b/x".into()])
    );
    assert_eq!((c.size("a/z"), c.names("a").len()), (Some(0), 3));
    assert_eq!(c.asked(), [4 + 3, 3 + 1, 2]);
    // the cache no longer knows when these keys were invalidated, so it requests all of them
    (0..5000).for_each(|i| c.store.forget(&key(&format!("other/{i}"))));
    assert_eq!(c.text("b/x").as_deref(), Some("unseen"));
}

#[test]
fn own_changes_are_visible_immediately() {
    let c = case(&["a/x"], None);
    let x = key("a/x");
    let y = key("n/m/y");
    assert_eq!(
        (
            c.size("n/m/y"),
            c.size("n/m"),
            c.size("n"),
            c.names("").len()
        ),
        (None, None, None, 1)
    );
    c.store.put(&y, b"12").unwrap();
    assert_eq!(
        (c.size("n/m/y"), c.size("n/m"), c.size("n"), c.names("")),
        (Some(2), Some(0), Some(0), vec!["a".into(), "n".into()])
    );
    assert_eq!(
        (c.size("a/x"), c.text("a/x").as_deref()),
        (Some(3), Some("a/x"))
    );
    let version = c.store.stat(&x).unwrap().unwrap().version;
    let next = c
        .store
        .put_if(&x, b"other", Replaces::Version(&version))
        .unwrap()
        .unwrap();
    let reads = c.asked()[1];
    assert_eq!(
        (c.size("a/x"), c.text("a/x").as_deref(), c.asked()[1]),
        (Some(5), Some("other"), reads),
        "it was put here"
    );
    // another process has replaced the value, which a failed put must reveal
    c.memory.insert("a/x", "foreign");
    assert_eq!(
        c.store
            .put_if(&x, b"late", Replaces::Version(&next))
            .unwrap(),
        None
    );
    assert_eq!(
        (c.size("a/x"), c.text("a/x").as_deref()),
        (Some(7), Some("foreign"))
    );
    c.store.rename(&key("n"), &key("o")).unwrap();
    assert_eq!(
        (c.size("n/m/y"), c.size("n"), c.size("o/m/y")),
        (None, None, Some(2))
    );
    assert!(c.store.delete(&x).unwrap());
    assert_eq!((c.size("a/x"), c.text("a/x")), (None, None));
    // a failed put may have taken effect
    c.counted.plan(PlannedFault {
        applied: true,
        ..PlannedFault::next(Operation::Put, libc::EIO)
    });
    assert!(c.store.put(&x, b"1").is_err());
    assert_eq!(c.size("a/x"), Some(1));
}

/// "`ls -l` of 100,000 chunks must not send 100,000 HEADs".
#[test]
fn names_of_a_listing_need_no_requests() {
    let keys: Vec<String> = (0..3000).map(|i| format!("a/{i}")).collect();
    let expected: Vec<_> = keys.iter().map(|k| Some(k.len() as u64)).collect();
    let many = |c: &Case| {
        let mut sizes = Vec::new();
        c.store
            .stat_many(&mut keys.iter().map(|k| key(k)), &mut |stat| {
                sizes.push(stat.unwrap().map(|stat| stat.size));
                true
            });
        sizes
    };
    // the names stay valid while each call follows within a second, which a busy machine may miss
    let in_time = || {
        let c = case(
            &keys.iter().map(String::as_str).collect::<Vec<_>>(),
            Some(Duration::from_millis(1)),
        );
        let begun = Instant::now();
        assert_eq!(c.names("a").len(), 3000);
        assert_eq!(many(&c), expected);
        let asked = c.asked();
        if asked == [0, 0, 1] {
            return Some(c);
        }
        assert!(begun.elapsed() >= Duration::from_secs(1), "{asked:?}");
        None
    };
    let c = (0..20).find_map(|_| in_time()).expect("a round in time");
    // opening a file revalidates everything below its array
    c.store.forget(&key("a"));
    assert_eq!(many(&c), expected);
    assert_eq!(c.asked()[0], 3000);
}

#[test]
fn stat_many_keeps_the_order_of_cached_and_requested_keys() {
    let c = case(&["a", "b", "c", "d"], None);
    let mut given = Vec::new();
    let wanted = ["a", "none", "b", "none", "c", "d"];
    assert_eq!(c.size("b"), c.size("d"));
    let mut give = |up_to: usize| {
        given.clear();
        c.store
            .stat_many(&mut wanted.iter().map(|k| key(k)), &mut |stat| {
                given.push(stat.unwrap().is_some());
                given.len() < up_to
            });
        given.clone()
    };
    assert_eq!(give(100), [true, false, true, false, true, true]);
    assert_eq!(give(3), [true, false, true]);
    assert_eq!(give(6).len(), 6);
}

#[test]
fn a_listing_from_before_a_change_is_not_cached() {
    let c = case(&["a/1", "a/2", "a/3"], None);
    let mut listing = c.store.list(&key("a")).unwrap();
    listing.next().unwrap().unwrap();
    c.store.put(&key("a/3"), b"longer").unwrap();
    listing.for_each(drop);
    assert_eq!((c.size("a/3"), c.asked()[2]), (Some(6), 1));
    assert_eq!((c.names("a").len(), c.asked()[2]), (3, 2));
    let mut listing = c.store.list(&key("a")).unwrap();
    c.memory.insert("a/2", "longer");
    c.store.forget(&key("a"));
    drop(listing.next());
    listing.for_each(drop);
    assert_eq!(
        (c.size("a/2"), c.names("a").len(), c.asked()[2]),
        (Some(6), 3, 3)
    );
}

/// A store whose `stat` blocks until the test continues it.
struct Slow {
    memory: MemoryStore,
    go: Mutex<mpsc::Receiver<Result<()>>>,
    asked: Mutex<u64>,
}

impl PagedListing for Slow {}

impl Readable for Slow {
    delegate_store!(memory: read list location);

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        let stat = self.memory.stat(key)?;
        *lock(&self.asked) += 1;
        lock(&self.go).recv().unwrap_or(Ok(()))?;
        Ok(stat)
    }
}

impl Store for Slow {
    delegate_store!(memory: put_pieces);
}

/// Returns a slow store with a value, and what lets it answer.
fn slow_store() -> (mpsc::Sender<Result<()>>, Arc<Slow>) {
    let (go, wait) = mpsc::channel();
    let slow = Slow {
        memory: MemoryStore::default(),
        go: Mutex::new(wait),
        asked: Mutex::default(),
    };
    slow.memory.insert("x", "1");
    (go, Arc::new(slow))
}

#[test]
fn concurrent_requests_share_a_current_result() {
    let (go, slow) = slow_store();
    let store = Arc::new(MetadataCache::new(slow.clone(), LONG));
    let begun = Arc::new(AtomicUsize::new(0));
    let ask = || {
        let store = store.clone();
        let begun = begun.clone();
        std::thread::spawn(move || {
            begun.fetch_add(1, Ordering::Relaxed);
            store.stat(&key("x")).map(|stat| stat.unwrap().size)
        })
    };
    let asked = |n| {
        while *lock(&slow.asked) < n {
            std::thread::yield_now()
        }
    };
    let first: Vec<_> = (0..4).map(|_| ask()).collect();
    asked(1);
    // a thread that begins after the change would see the new value
    while begun.load(Ordering::Relaxed) < 4 {
        std::thread::yield_now()
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(*lock(&slow.asked), 1);
    // requests from now on must see the new value
    slow.memory.insert("x", "222");
    store.forget(&key("x"));
    let second = ask();
    asked(2);
    go.send(Ok(())).unwrap();
    go.send(Ok(())).unwrap();
    first
        .into_iter()
        .for_each(|t| assert_eq!(t.join().unwrap().unwrap(), 1));
    assert_eq!(
        (
            second.join().unwrap().unwrap(),
            store.stat(&key("x")).unwrap().unwrap().size
        ),
        (3, 3)
    );
    assert_eq!(*lock(&slow.asked), 2);
    // all waiting threads get the error, which is not cached
    store.forget(&key("x"));
    let third = ask();
    asked(3);
    go.send(Err(Error::system(libc::EIO))).unwrap();
    assert_eq!(third.join().unwrap().unwrap_err().errno(), libc::EIO);
    go.send(Ok(())).unwrap();
    assert_eq!(ask().join().unwrap().unwrap(), 3);
}

/// "counted from the answer": an answer that takes longer than the time to live is used for it.
#[test]
fn the_time_to_live_begins_when_the_answer_has_come() {
    let ttl = Duration::from_secs(2);
    // a busy machine may need longer than the time to live from the answer to the next call
    let is_in_time = || {
        let (go, slow) = slow_store();
        let store = MetadataCache::new(slow.clone(), Some(ttl));
        let answered = std::thread::scope(|scope| {
            let asking = scope.spawn(|| store.stat(&key("x")).unwrap());
            while *lock(&slow.asked) < 1 {
                std::thread::yield_now();
            }
            std::thread::sleep(ttl + Duration::from_millis(100));
            let answered = Instant::now();
            go.send(Ok(())).unwrap();
            assert_eq!(asking.join().unwrap().unwrap().size, 1);
            answered
        });
        // for a request that should not be sent, which would wait for ever
        go.send(Ok(())).unwrap();
        assert_eq!(store.stat(&key("x")).unwrap().unwrap().size, 1);
        let asked = *lock(&slow.asked);
        assert!(asked == 1 || answered.elapsed() >= ttl, "{asked}");
        asked == 1
    };
    assert!((0..20).any(|_| is_in_time()));
}

/// A panic affects no other request.
#[test]
fn a_panic_of_the_sender_does_not_block_others() {
    struct Panicking {
        memory: MemoryStore,
        panicked: Mutex<bool>,
    }
    impl PagedListing for Panicking {}
    impl Readable for Panicking {
        delegate_store!(memory: read list location);

        fn stat(&self, key: &Key) -> Result<Option<Stat>> {
            if !std::mem::replace(&mut *lock(&self.panicked), true) {
                panic!("this is a test");
            }
            self.memory.stat(key)
        }
    }

    impl Store for Panicking {}
    let store = MetadataCache::new(
        Arc::new(Panicking {
            memory: MemoryStore::default(),
            panicked: Mutex::default(),
        }),
        None,
    );
    let ask = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.stat(&key("x"))));
    assert!(ask().is_err());
    assert_eq!(ask().unwrap().unwrap(), None);
}

/// A store that lists whole levels and whole stores by one request.
struct ListedStore {
    memory: Arc<MemoryStore>,
    /// The requests so far.
    requests: Mutex<Vec<String>>,
    /// Number of values in a page.
    page: AtomicUsize,
}

impl ListedStore {
    fn add(&self, request: &str, key: &Key) {
        lock(&self.requests).push(format!("{request} {}", key.as_str()));
    }
}

impl Readable for ListedStore {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            concurrency: 8,
            ..Capabilities::default()
        }
    }

    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        if let ByteRange::Whole(_) = range {
            self.add("get", key);
        }
        self.memory.read(key, range, value)
    }

    delegate_store!(memory: location);

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.add("stat", key);
        self.memory.stat(key)
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        self.add("list", prefix);
        self.memory.list(prefix)
    }
}

impl Store for ListedStore {
    delegate_store!(memory: put_pieces change check_writable);
}

impl PagedListing for ListedStore {
    fn first_names(&self, prefix: &Key) -> Result<Option<FirstNames>> {
        self.add("names", prefix);
        let entries = self.memory.list(prefix).map_or(Ok(Vec::new()), |names| {
            names.collect::<Result<Vec<Entry>>>()
        })?;
        let entries = entries.into_iter().map(|entry| {
            let stat = self.memory.stat(&prefix.join(&entry.name)).unwrap();
            Entry {
                stat: stat.filter(|stat| stat.kind == EntryKind::Value),
                ..entry
            }
        });
        Ok(Some(FirstNames {
            entries: entries.collect(),
            reach: Reach::All,
        }))
    }

    fn values_below(&self, prefix: &Key, after: Option<&Key>) -> Result<Option<ValuePages>> {
        self.add("values", after.unwrap_or(prefix));
        let mut found = Vec::new();
        let mut levels = vec![prefix.clone()];
        while let Some(level) = levels.pop() {
            for entry in self.memory.list(&level)? {
                let key = level.join(&entry?.name);
                match self.memory.stat(&key)? {
                    Some(stat) if stat.kind == EntryKind::Value => found.push((key, stat)),
                    _ => levels.push(key),
                }
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found.retain(|(key, _)| after.is_none_or(|after| key.as_str() > after.as_str()));
        let size = self.page.load(Ordering::Relaxed);
        let count = found.chunks(size).count();
        let page = |(n, page): (usize, &[(Key, Stat)])| {
            Ok(ValuePage {
                values: page.to_vec(),
                is_last: n + 1 == count,
            })
        };
        let pages: Vec<_> = found.chunks(size).enumerate().map(page).collect();
        Ok(Some(Box::new(pages.into_iter())))
    }
}

fn listed(values: &[&str], ttl: Option<Duration>) -> (Arc<ListedStore>, MetadataCache) {
    let memory = Arc::new(MemoryStore::default());
    values
        .iter()
        .for_each(|key| memory.insert(key, key.as_bytes()));
    let below = Arc::new(ListedStore {
        memory,
        requests: Mutex::default(),
        page: AtomicUsize::new(3),
    });
    (
        below.clone(),
        MetadataCache::new(below, ttl).with_documents(&[".doc", "doc.json"]),
    )
}

fn taken(store: &ListedStore) -> String {
    let mut requests = std::mem::take(&mut *lock(&store.requests));
    requests.sort();
    requests.join(", ")
}

#[test]
fn one_listing_shows_the_documents_of_a_level() {
    let (below, store) = listed(&["a/.doc", "a/0", "b"], None);
    let size = |path: &str| store.stat(&key(path)).unwrap().map(|stat| stat.size);
    let both = |level: &str| [".doc", "doc.json"].map(|name| size(&format!("{level}/{name}")));
    assert_eq!(
        (both("a"), size("a"), size("a/0")),
        ([Some(6), None], Some(0), Some(3))
    );
    assert_eq!(taken(&below), "names a");
    assert_eq!(store.list(&key("a")).unwrap().count(), 2);
    assert_eq!(taken(&below), "");
    // other names may have appeared
    below.memory.insert("a/1", "1");
    assert_eq!((size("a/1"), taken(&below).as_str()), (Some(1), "stat a/1"));
    // the store is not asked about a level that is known not to exist
    assert_eq!(
        (size(".doc"), both("x"), taken(&below).as_str()),
        (None, [None; 2], "names ")
    );
    below.memory.insert("x/.doc", "xyz");
    assert_eq!(both("x"), [None; 2]);
    store.forget(&key("x"));
    assert_eq!(
        (both("x"), taken(&below).as_str()),
        ([Some(3), None], "names x")
    );
    store.put(&key("a/doc.json"), b"1").unwrap();
    // the names that are known stay known after a change of this mount
    assert_eq!(
        (both("a"), taken(&below).as_str()),
        ([Some(6), Some(1)], "stat a/doc.json")
    );
    store.delete(&key("a/doc.json")).unwrap();
    assert_eq!((both("a"), taken(&below).as_str()), ([Some(6), None], ""));
    // a put on a condition that fails reveals that another program has changed the level
    below.memory.insert("a/doc.json", "other");
    assert_eq!(
        store
            .put_if(&key("a/doc.json"), b"mine", Replaces::Nothing)
            .unwrap(),
        None
    );
    assert_eq!(
        (both("a"), taken(&below).as_str()),
        ([Some(6), Some(5)], "names a")
    );
}

#[test]
fn an_incomplete_listing_proves_no_absence() {
    let memory = Arc::new(MemoryStore::default());
    memory.insert("a/.doc", "1");
    let store =
        MetadataCache::new(Arc::new(UnlistedStore::new(memory)), None).with_documents(&[".doc"]);
    assert_eq!(store.list(&Key::root()).unwrap().count(), 0);
    assert!(store.stat(&key("a/.doc")).unwrap().is_some());
}

#[test]
fn expired_names_of_a_level_are_requested_again() {
    for ttl in [Duration::ZERO, Duration::from_millis(20)] {
        let (below, store) = listed(&["a/.doc"], Some(ttl));
        assert!(store.stat(&key("a/doc.json")).unwrap().is_none());
        below.memory.insert("a/doc.json", "new");
        std::thread::sleep(Duration::from_millis(30));
        assert!(store.stat(&key("a/doc.json")).unwrap().is_some());
        assert_eq!(taken(&below), "names a, names a");
    }
}

#[test]
fn a_snapshot_answers_for_all_keys() {
    let (below, store) = listed(&["a/.doc", "a/c/0", "a/c/1", "b/.doc", "d"], None);
    store.hint(Hint::WholeStore);
    assert_eq!(taken(&below), "values ");
    let size = |path: &str| store.stat(&key(path)).unwrap().map(|stat| stat.size);
    let all = [
        "a",
        "a/.doc",
        "a/c",
        "a/c/1",
        "b/doc.json",
        "d",
        "a/c/2",
        "x",
        "x/.doc",
    ]
    .map(size);
    assert_eq!(
        all,
        [
            Some(0),
            Some(6),
            Some(0),
            Some(5),
            None,
            Some(1),
            None,
            None,
            None
        ]
    );
    assert_eq!(store.list(&key("a/c")).unwrap().count(), 2);
    assert_eq!(taken(&below), "");
    store.hint(Hint::Nodes(&["a", "b"].map(key)));
    assert_eq!(taken(&below), "get a/.doc, get b/.doc");
    let mut value = Vec::new();
    store.get(&key("a/.doc"), 100, &mut value).unwrap();
    assert_eq!(
        (value.as_slice(), taken(&below).as_str()),
        (&b"a/.doc"[..], "")
    );
}

/// Pages full of values cost more than they save. The names that they have returned are used.
#[test]
fn a_snapshot_of_a_large_store_ends_early() {
    let keys: Vec<String> = (0..50)
        .map(|i| format!("a/{i:02}"))
        .chain(["b/.doc".into(), "0/.doc".into()])
        .collect();
    let (below, store) = listed(&keys.iter().map(String::as_str).collect::<Vec<_>>(), None);
    store.hint(Hint::WholeStore);
    taken(&below);
    let size = |path: &str| store.stat(&key(path)).unwrap().map(|stat| stat.size);
    assert_eq!((size("0/doc.json"), taken(&below).as_str()), (None, ""));
    assert_eq!(
        (size("b/doc.json"), size("a/49"), size("a/50")),
        (None, Some(4), None)
    );
    assert_eq!(taken(&below), "names b, stat a/49, stat a/50");
}

/// The levels of a page that may begin before it, or end after it, are not complete.
#[test]
fn siblings_are_listed_together() {
    let names: Vec<String> = (0..12).map(|i| format!("g/{i:02}")).collect();
    let values: Vec<String> = names
        .iter()
        .flat_map(|name| [format!("{name}/.doc"), format!("{name}/c/0")])
        .collect();
    let (below, store) = listed(&values.iter().map(String::as_str).collect::<Vec<_>>(), None);
    let keys: Vec<Key> = names.iter().map(|name| key(name)).collect();
    below.page.store(100, Ordering::Relaxed);
    store.hint(Hint::Nodes(&keys[2..10]));
    let gets: Vec<String> = names[2..10]
        .iter()
        .map(|name| format!("get {name}/.doc"))
        .collect();
    assert_eq!(taken(&below), format!("{}, values g/02", gets.join(", ")));
    for name in &names[2..10] {
        assert_eq!(store.list(&key(name)).unwrap().count(), 2);
        assert_eq!(store.list(&key(name).join("c")).unwrap().count(), 1);
        assert_eq!(store.stat(&key(name).join("doc.json")).unwrap(), None);
    }
    assert_eq!(taken(&below), "");
    // the level above is not known, and neither is what was not listed
    assert_eq!(
        (
            store.list(&key("g")).unwrap().count(),
            taken(&below).as_str()
        ),
        (12, "names g")
    );
    assert_eq!(
        (
            store.list(&key("g/00")).unwrap().count(),
            taken(&below).as_str()
        ),
        (2, "names g/00")
    );
}

#[test]
fn unknown_levels_are_listed_together() {
    let (below, store) = listed(&["a/.doc", "a/c/0/0", "a/c/1/0"], None);
    store.hint(Hint::Below(&key("a")));
    assert_eq!(taken(&below), "values a");
    for (level, count) in [("a", 2), ("a/c", 2), ("a/c/1", 1)] {
        assert_eq!(store.list(&key(level)).unwrap().count(), count);
    }
    store.hint(Hint::Below(&key("a")));
    assert_eq!(taken(&below), "");
    below.memory.insert("a/c/1/1", "1");
    assert_eq!(
        store.stat(&key("a/c/1/1")).unwrap().unwrap().size,
        1,
        "no snapshot"
    );
}

#[test]
fn documents_of_a_level_are_revalidated_together() {
    let Case {
        memory, counted, ..
    } = case(&["a/.doc"], None);
    let store =
        MetadataCache::new(counted.clone(), None).with_documents(&["doc.json", ".doc", "other"]);
    let c = Case {
        memory,
        counted,
        store,
    };
    assert_eq!(
        (c.size("a/doc.json"), c.size("a/.doc"), c.asked()[0]),
        (None, Some(6), 2)
    );
    c.store.forget(&key("a"));
    c.memory.insert("a/.doc", "new");
    // the first question has both answers, and none about a document that was never requested
    assert_eq!((c.size("a/doc.json"), c.asked()[0]), (None, 4));
    assert_eq!((c.size("a/.doc"), c.asked()[0]), (Some(3), 4));
    assert_eq!((c.size("a/other"), c.asked()[0]), (None, 5));
    // an error belongs to its document alone, and the next question requests that document again
    c.store.forget(&key("a"));
    c.counted
        .plan(PlannedFault::next(Operation::Stat, libc::EIO));
    assert_eq!(
        c.store.stat(&key("a/doc.json")).unwrap_err().errno(),
        libc::EIO
    );
    assert_eq!(
        (c.size("a/.doc"), c.size("a/other"), c.asked()[0]),
        (Some(3), None, 8)
    );
    assert_eq!((c.size("a/doc.json"), c.asked()[0]), (None, 9));
}
