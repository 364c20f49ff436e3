use super::*;
use crate::error::Error;
use crate::store::{FaultyStore, MemoryStore, Operation, PlannedFault, delegate_store};
use std::sync::mpsc;

const LONG: Option<Duration> = Some(Duration::from_secs(3600));

struct Case {
    memory: Arc<MemoryStore>,
    counted: Arc<FaultyStore>,
    store: MetadataCache,
}

fn case(values: &[&str], ttl: Option<Duration>) -> Case {
    let memory = Arc::new(MemoryStore::default());
    values.iter().for_each(|key| memory.insert(key, key.as_bytes()));
    let counted = Arc::new(FaultyStore::new(memory.clone()));
    let store = MetadataCache::new(counted.clone(), ttl);
    Case { memory, counted, store }
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
        self.store.get(&key(path), 1 << 20, &mut value).unwrap().map(|_| String::from_utf8(value).unwrap())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = self.store.list(&key(path)).unwrap().map(|e| e.unwrap().name).collect();
        names.sort();
        names
    }

    /// Returns the number of requests for metadata, values and listings.
    fn asked(&self) -> [u64; 3] {
        [Operation::Stat, Operation::Get, Operation::List].map(|operation| self.counted.calls(operation))
    }
}

#[test]
fn metadata_is_cached_and_values_only_after_their_metadata() {
    let c = case(&["a/x", "a/y"], None);
    for _ in 0..3 {
        assert_eq!((c.size("a/x"), c.size("none"), c.size("a")), (Some(3), None, Some(0)));
        assert_eq!((c.text("a/x").as_deref(), c.text("none"), c.names("a").len()), (Some("a/x"), None, 2));
    }
    assert_eq!(c.asked(), [3, 1, 1]);
    assert_eq!((c.text("a/z"), c.text("a/z")), (None, None));
    c.memory.insert("a/z", "new");
    assert_eq!(c.text("a/z").as_deref(), Some("new"), "it was never looked at");
    assert_eq!(c.asked(), [3, 4, 1]);
}

#[test]
fn a_large_value_is_not_cached_and_limits_hold() {
    let c = case(&[], None);
    c.memory.insert("large", vec![b'x'; MAX_VALUE + 1]);
    c.memory.insert("small", "0123");
    for _ in 0..2 {
        assert_eq!((c.size("large"), c.text("large").unwrap().len()), (Some(65537), 65537));
        assert_eq!((c.size("small"), c.text("small").unwrap().len()), (Some(4), 4));
    }
    assert_eq!(c.asked()[1], 3);
    assert!(c.store.get(&key("small"), 3, &mut Vec::new()).is_err());
}

#[test]
fn expired_entries_are_requested_again() {
    let c = case(&["a/x"], Some(Duration::from_millis(20)));
    assert_eq!((c.size("a/x"), c.size("b"), c.names("a").len()), (Some(3), None, 1));
    c.memory.insert("a/x", "longer");
    c.memory.insert("b", "");
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!((c.size("a/x"), c.size("b"), c.names("a").len()), (Some(6), Some(0), 1));
    assert_eq!(c.asked(), [4, 0, 2]);
}

#[test]
fn forgotten_entries_are_requested_again_but_unchanged_values_are_not() {
    let c = case(&["a/x", "a/y", "b/x"], None);
    let all = || [c.text("a/x"), c.text("a/y"), c.text("b/x")].map(Option::unwrap);
    let look = || ["a/x", "a/y", "b/x"].map(|path| c.size(path).unwrap());
    assert_eq!((look(), all().concat(), c.names("a").len(), c.size("a/z")), ([3; 3], "a/xa/yb/x".into(), 2, None));
    c.memory.insert("a/y", "new");
    c.memory.insert("a/z", "");
    c.memory.insert("b/x", "unseen");
    c.store.forget(&key("a"));
    assert_eq!((look(), all()), ([3, 3, 3], ["a/x".into(), "new".into(), "b/x".into()]));
    assert_eq!((c.size("a/z"), c.names("a").len()), (Some(0), 3));
    assert_eq!(c.asked(), [4 + 3, 3 + 1, 2]);
    // after many others, what was forgotten when is unknown, so everything is requested
    (0..5000).for_each(|i| c.store.forget(&key(&format!("other/{i}"))));
    assert_eq!(c.text("b/x").as_deref(), Some("unseen"));
}

#[test]
fn own_changes_are_visible_immediately() {
    let c = case(&["a/x"], None);
    let (x, y) = (key("a/x"), key("n/m/y"));
    assert_eq!((c.size("n/m/y"), c.size("n/m"), c.size("n"), c.names("").len()), (None, None, None, 1));
    c.store.put(&y, b"12").unwrap();
    assert_eq!(
        (c.size("n/m/y"), c.size("n/m"), c.size("n"), c.names("")),
        (Some(2), Some(0), Some(0), vec!["a".into(), "n".into()])
    );
    assert_eq!((c.size("a/x"), c.text("a/x").as_deref()), (Some(3), Some("a/x")));
    let version = c.store.stat(&x).unwrap().unwrap().version;
    let next = c.store.put_if(&x, b"other", Replaces::Version(&version)).unwrap().unwrap();
    let reads = c.asked()[1];
    assert_eq!(
        (c.size("a/x"), c.text("a/x").as_deref(), c.asked()[1]),
        (Some(5), Some("other"), reads),
        "it was put here"
    );
    // another process has replaced the value, which a failed put must reveal
    c.memory.insert("a/x", "foreign");
    assert_eq!(c.store.put_if(&x, b"late", Replaces::Version(&next)).unwrap(), None);
    assert_eq!((c.size("a/x"), c.text("a/x").as_deref()), (Some(7), Some("foreign")));
    c.store.rename(&key("n"), &key("o")).unwrap();
    assert_eq!((c.size("n/m/y"), c.size("n"), c.size("o/m/y")), (None, None, Some(2)));
    assert!(c.store.delete(&x).unwrap());
    assert_eq!((c.size("a/x"), c.text("a/x")), (None, None));
    // a failed put may have taken effect
    c.counted.plan(PlannedFault { applied: true, ..PlannedFault::next(Operation::Put, libc::EIO) });
    assert!(c.store.put(&x, b"1").is_err());
    assert_eq!(c.size("a/x"), Some(1));
}

/// "`ls -l` of 100,000 chunks must not send 100,000 HEADs".
#[test]
fn names_of_a_listing_need_no_requests() {
    let keys: Vec<String> = (0..3000).map(|i| format!("a/{i}")).collect();
    let c = case(&keys.iter().map(String::as_str).collect::<Vec<_>>(), Some(Duration::from_millis(1)));
    let many = |keys: &[String]| {
        let mut sizes = Vec::new();
        c.store.stat_many(&mut keys.iter().map(|k| key(k)), &mut |stat| {
            sizes.push(stat.unwrap().map(|stat| stat.size));
            true
        });
        sizes
    };
    let names = c.names("a");
    assert_eq!(names.len(), 3000);
    let expected: Vec<_> = keys.iter().map(|k| Some(k.len() as u64)).collect();
    assert_eq!(many(&keys), expected);
    assert_eq!(c.asked(), [0, 0, 1]);
    // opening a file revalidates everything below its array
    c.store.forget(&key("a"));
    assert_eq!(many(&keys), expected);
    assert_eq!(c.asked()[0], 3000);
}

#[test]
fn stat_many_keeps_the_order_of_cached_and_requested_keys() {
    let c = case(&["a", "b", "c", "d"], None);
    let (mut given, wanted) = (Vec::new(), ["a", "none", "b", "none", "c", "d"]);
    assert_eq!(c.size("b"), c.size("d"));
    let mut give = |up_to: usize| {
        given.clear();
        c.store.stat_many(&mut wanted.iter().map(|k| key(k)), &mut |stat| {
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
    assert_eq!((c.size("a/2"), c.names("a").len(), c.asked()[2]), (Some(6), 3, 3));
}

/// A store whose `stat` blocks until the test continues it.
struct Slow {
    memory: MemoryStore,
    go: Mutex<mpsc::Receiver<Result<()>>>,
    asked: Mutex<u64>,
}

impl Store for Slow {
    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        let stat = self.memory.stat(key)?;
        *lock(&self.asked) += 1;
        lock(&self.go).recv().unwrap_or(Ok(()))?;
        Ok(stat)
    }

    delegate_store!(memory: get get_range list location put);
}

#[test]
fn concurrent_requests_share_a_current_result() {
    let (go, wait) = mpsc::channel();
    let slow = Arc::new(Slow { memory: MemoryStore::default(), go: Mutex::new(wait), asked: Mutex::default() });
    slow.memory.insert("x", "1");
    let store = Arc::new(MetadataCache::new(slow.clone(), LONG));
    let ask = || {
        let store = store.clone();
        std::thread::spawn(move || store.stat(&key("x")).map(|stat| stat.unwrap().size))
    };
    let asked = |n| {
        while *lock(&slow.asked) < n {
            std::thread::yield_now()
        }
    };
    let first: Vec<_> = (0..4).map(|_| ask()).collect();
    asked(1);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(*lock(&slow.asked), 1);
    // requests from now on must see the new value
    slow.memory.insert("x", "222");
    store.forget(&key("x"));
    let second = ask();
    asked(2);
    go.send(Ok(())).unwrap();
    go.send(Ok(())).unwrap();
    first.into_iter().for_each(|t| assert_eq!(t.join().unwrap().unwrap(), 1));
    assert_eq!((second.join().unwrap().unwrap(), store.stat(&key("x")).unwrap().unwrap().size), (3, 3));
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

/// A panic affects no other request.
#[test]
fn a_panic_of_the_sender_does_not_block_others() {
    struct Panicking {
        memory: MemoryStore,
        panicked: Mutex<bool>,
    }
    impl Store for Panicking {
        fn stat(&self, key: &Key) -> Result<Option<Stat>> {
            if !std::mem::replace(&mut *lock(&self.panicked), true) {
                panic!("this is a test");
            }
            self.memory.stat(key)
        }

        delegate_store!(memory: get get_range list location);
    }
    let store =
        MetadataCache::new(Arc::new(Panicking { memory: MemoryStore::default(), panicked: Mutex::default() }), None);
    let ask = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.stat(&key("x"))));
    assert!(ask().is_err());
    assert_eq!(ask().unwrap().unwrap(), None);
}
