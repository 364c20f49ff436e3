use super::*;
use crate::testing::{FaultyStore, Operation, PlannedFault};
use crate::{MemoryStore, delegate_store};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

const LIMIT: u64 = 1 << 20;

/// A store in memory whose versions, like those of a server, are valid in all processes.
#[derive(Default)]
struct Server {
    values: MemoryStore,
}

fn tag(version: Version) -> Version {
    Version::Tag(format!("\"{version}\""))
}

fn tagged(stat: Stat) -> Stat {
    Stat {
        version: tag(stat.version.clone()),
        ..stat
    }
}

impl Readable for Server {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        Ok(self.values.read(key, range, value)?.map(tagged))
    }

    delegate_store!(values: list location);

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        Ok(self.values.stat(key)?.map(tagged))
    }
}

impl Store for Server {
    delegate_store!(values: change check_writable);

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        Ok(self.values.put_pieces(key, pieces, replaces)?.map(tag))
    }
}

/// A server, and a directory for caches.
struct Place {
    home: TempDir,
    server: Arc<Server>,
    calls: Arc<FaultyStore>,
    stats: Arc<Stats>,
}

impl Place {
    fn new() -> Self {
        let server = Arc::new(Server::default());
        let calls = Arc::new(FaultyStore::new(server.clone()));
        Place {
            home: tempfile::tempdir().unwrap(),
            server,
            calls,
            stats: Arc::default(),
        }
    }

    fn cache(&self) -> DiskCache {
        self.cache_of(LIMIT)
    }

    fn cache_of(&self, limit: u64) -> DiskCache {
        DiskCache::open(
            self.calls.clone(),
            &self.home.path().join("cache"),
            limit,
            self.stats.clone(),
        )
        .unwrap()
    }

    fn insert(&self, name: &str, value: impl Into<Vec<u8>>) {
        self.server.values.insert(name, value);
    }

    fn own(&self) -> PathBuf {
        self.home.path().join("cache/zarrfs-cache-1")
    }

    /// Returns the number of requests for values and for metadata.
    fn requests(&self) -> (u64, u64) {
        (
            self.calls.calls(Operation::Get),
            self.calls.calls(Operation::Stat),
        )
    }

    fn hits(&self) -> (u64, u64) {
        (
            self.stats.disk_cache_hits.get(),
            self.stats.disk_cache_misses.get(),
        )
    }
}

fn key(name: &str) -> Key {
    Key::normalize(name).unwrap()
}

fn get(store: &dyn Store, name: &str) -> Result<Option<Vec<u8>>> {
    let mut value = b"what was there".to_vec();
    Ok(store.get(&key(name), 1 << 30, &mut value)?.map(|_| value))
}

fn part(store: &dyn Store, name: &str, range: Range<u64>) -> Option<Vec<u8>> {
    let mut value = b"what was there".to_vec();
    store
        .get_range(&key(name), range, &mut value)
        .unwrap()
        .map(|_| value)
}

/// Returns the files with values in the directory of a cache, and their sizes.
fn files(own: &Path) -> Vec<(PathBuf, u64)> {
    let levels = std::fs::read_dir(own)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.is_dir());
    let files = levels
        .flat_map(|level| std::fs::read_dir(level).unwrap())
        .map(|e| e.unwrap());
    // a file may be evicted meanwhile
    files
        .filter_map(|e| Some((e.path(), e.metadata().ok()?.len())))
        .collect()
}

fn disk(own: &Path) -> u64 {
    files(own)
        .iter()
        .map(|(_, size)| size.div_ceil(4096) * 4096)
        .sum()
}

fn counted(own: &Path) -> u64 {
    u64::from_le_bytes(
        *std::fs::read(own.join("used"))
            .unwrap()
            .first_chunk()
            .unwrap(),
    )
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed) as u8)
        .collect()
}

#[test]
fn values_are_read_once_and_cached_across_mounts() {
    let place = Place::new();
    place.insert("a/0.0", pattern(1, 200_000));
    place.insert("a/0.1", "");
    for (mount, requests, hits) in [
        (0, (2, 0), (0, 2)),
        (1, (2, 2), (2, 2)),
        (2, (2, 4), (4, 2)),
    ] {
        let cache = place.cache();
        assert_eq!(get(&cache, "a/0.0").unwrap().unwrap(), pattern(1, 200_000));
        assert_eq!(get(&cache, "a/0.1").unwrap().unwrap(), b"");
        assert_eq!(
            (place.requests(), place.hits()),
            (requests, hits),
            "{mount}"
        );
    }
    // versions and metadata are those of the server
    let cache = place.cache();
    let version = place.server.stat(&key("a/0.0")).unwrap().unwrap().version;
    assert_eq!(
        cache.get(&key("a/0.0"), LIMIT, &mut Vec::new()).unwrap(),
        Some(version)
    );
    assert_eq!(get(&cache, "a/none").unwrap(), None);
    // a limit is enforced by the store below
    assert!(cache.get(&key("a/0.0"), 199_999, &mut Vec::new()).is_err());
}

#[test]
fn servers_with_the_same_location_are_separate() {
    let place = Place::new();
    let other = Server::default();
    place.insert("v", "one");
    other.values.insert("v", "two");
    assert_eq!(
        place.server.stat(&key("v")).unwrap().unwrap().version,
        other.stat(&key("v")).unwrap().unwrap().version
    );
    let cache = place.cache().for_server("http://a");
    let directory = place.home.path().join("cache");
    let other = DiskCache::open(Arc::new(other), &directory, LIMIT, Arc::default())
        .unwrap()
        .for_server("http://b");
    for _ in 0..2 {
        assert_eq!(
            (
                get(&cache, "v").unwrap().unwrap(),
                get(&other, "v").unwrap().unwrap()
            ),
            (b"one".into(), b"two".into())
        );
    }
    assert_eq!(files(&place.own()).len(), 2);
}

#[test]
fn ranges_come_from_cached_values() {
    let place = Place::new();
    let value = pattern(3, 250_001);
    let cache = place.cache();
    place.insert("v", &*value);
    assert_eq!(part(&cache, "v", 5..9).unwrap(), value[5..9]);
    assert_eq!(place.hits(), (0, 1));
    get(&cache, "v").unwrap();
    let before = place.requests().0;
    for range in [
        0..1,
        65_535..65_537,
        65_536..131_072,
        131_072..250_001,
        249_000..400_000,
        0..250_001,
        250_001..250_002,
    ] {
        let expected = &value[range.start as usize..(range.end as usize).min(value.len())];
        assert_eq!(
            part(&cache, "v", range.clone()).unwrap(),
            expected,
            "{range:?}"
        );
    }
    assert_eq!(part(&cache, "v", 400_000..500_000).unwrap(), b"");
    assert_eq!(place.requests().0, before);
    // a range that turns out to be the whole value is cached
    place.insert("small", "whole");
    assert_eq!(
        (
            part(&cache, "small", 0..1000).unwrap(),
            part(&cache, "small", 1..3).unwrap()
        ),
        (b"whole".into(), b"ho".into())
    );
    assert_eq!(place.requests().0, before + 1);
}

#[test]
fn parts_of_values_that_never_change_are_cached_without_a_report() {
    let place = Place::new();
    let value = pattern(9, 100_000);
    place.insert("m/v", &*value);
    place.insert("repo", "changes");
    let parts = [0..1_000, 1_000..90_000, 90_000..100_000];
    let mut found = Vec::new();
    for _ in 0..2 {
        let cache = place.cache().of_immutable(&["m"]);
        for part in parts.clone() {
            let mut bytes = Vec::new();
            let stat = cache.get_range(&key("m/v"), part.clone(), &mut bytes);
            assert_eq!(bytes, value[part.start as usize..part.end as usize]);
            found.push(stat.unwrap().unwrap());
        }
        assert_eq!(part(&cache, "repo", 0..9).unwrap(), b"changes");
    }
    assert_eq!((place.hits(), place.requests()), ((3, 3), (5, 0)));
    // parts of which some come from the cache have one version
    let is_same = |stat: &Stat| stat.size == 100_000 && stat.version == found[0].version;
    assert!(found.iter().all(is_same), "{found:?}");
    for (path, _) in files(&place.own()) {
        std::fs::write(path, "damaged").unwrap();
    }
    let cache = place.cache().of_immutable(&["m"]);
    assert_eq!(part(&cache, "m/v", 0..1_000).unwrap(), value[..1_000]);
    assert_eq!(part(&cache, "m/none", 0..1_000), None);
}

#[test]
fn a_new_version_replaces_the_cached_value() {
    let place = Place::new();
    let cache = place.cache();
    for i in 0..5usize {
        place.insert("v", pattern(i, 1000));
        assert_eq!(get(&cache, "v").unwrap().unwrap(), pattern(i, 1000));
        assert_eq!(part(&cache, "v", 0..10).unwrap(), pattern(i, 10));
    }
    assert_eq!((place.hits(), files(&place.own()).len()), ((5, 5), 1));
    place.server.values.remove("v");
    assert_eq!(
        (get(&cache, "v").unwrap(), part(&cache, "v", 0..1)),
        (None, None)
    );
    // while the store cannot be asked, the cached value may be stale
    place.insert("v", "1");
    get(&cache, "v").unwrap().unwrap();
    place.calls.plan(PlannedFault {
        times: u64::MAX,
        ..PlannedFault::next(Operation::Stat, libc::EIO)
    });
    assert_eq!(get(&cache, "v").unwrap_err().errno(), libc::EIO);
}

#[test]
fn puts_are_cached_and_deletes_are_not() {
    let place = Place::new();
    let cache = place.cache();
    cache.put(&key("a/v"), b"put").unwrap();
    assert_eq!(
        (get(&cache, "a/v").unwrap().unwrap(), place.requests().0),
        (b"put".to_vec(), 0)
    );
    cache
        .put_if(&key("a/v"), b"again", Replaces::Anything)
        .unwrap()
        .unwrap();
    assert_eq!(
        (get(&cache, "a/v").unwrap().unwrap(), place.requests().0),
        (b"again".to_vec(), 0)
    );
    cache.rename(&key("a/v"), &key("a/w")).unwrap();
    assert_eq!(
        (
            get(&cache, "a/v").unwrap(),
            get(&cache, "a/w").unwrap().unwrap()
        ),
        (None, b"again".to_vec())
    );
    assert!(cache.delete(&key("a/w")).unwrap());
    assert_eq!(
        (get(&cache, "a/w").unwrap(), files(&place.own())),
        (None, vec![])
    );
    assert_eq!(counted(&place.own()), 0);
    // a failed put changes nothing
    place
        .calls
        .plan(PlannedFault::next(Operation::Put, libc::EIO));
    assert!(cache.put(&key("a/w"), b"lost").is_err());
    assert!(files(&place.own()).is_empty());
}

#[test]
fn torn_and_damaged_files_are_never_used() {
    let place = Place::new();
    let value = pattern(7, 66_000);
    place.insert("v", &*value);
    let cache = place.cache();
    get(&cache, "v").unwrap();
    let (path, size) = files(&place.own()).remove(0);
    let whole = std::fs::read(&path).unwrap();
    let header = size as usize - value.len();
    let lens = (0..header + 50)
        .chain((header + 50..whole.len()).step_by(997))
        .chain([whole.len() - 1, whole.len() + 1]);
    let cut = lens.map(|len| {
        [
            &whole[..len.min(whole.len())],
            &vec![0; len.saturating_sub(whole.len())],
        ]
        .concat()
    });
    let flip = |at: usize, bit: u8| {
        let mut bytes = whole.clone();
        bytes[at] ^= bit;
        bytes
    };
    let places = (0..header + 10).chain((header..whole.len()).step_by(1999));
    let flipped = places.map(|at| flip(at, 1 << (at % 8)));
    // a file whose size was set but not its content, as after a crash of the system
    let unfilled = [
        [&whole[..header], &vec![0; value.len()]].concat(),
        vec![0; whole.len()],
    ];
    for bytes in cut.chain(flipped).chain(unfilled) {
        std::fs::write(&path, &bytes).unwrap();
        let misses = place.hits().1;
        assert_eq!(part(&cache, "v", 65_000..66_000).unwrap(), value[65_000..]);
        assert_eq!(get(&cache, "v").unwrap().unwrap(), value);
        // the range may be in an undamaged block
        assert!(place.hits().1 > misses);
        assert_eq!(std::fs::read(&path).unwrap(), whole, "it was not replaced");
    }
}

#[test]
fn the_least_recently_used_files_are_evicted_at_the_limit() {
    let place = Place::new();
    let cache = place.cache();
    let own = place.own();
    let name = |i: usize| format!("a/{i}");
    for i in 0..200 {
        place.insert(&name(i), pattern(i, 20_000));
        get(&cache, &name(i)).unwrap().unwrap();
        assert!(
            disk(&own) <= LIMIT && disk(&own) <= counted(&own),
            "{i}: {} of {}",
            disk(&own),
            counted(&own)
        );
        // makes each file a minute older, then uses one of them
        for (path, _) in files(&own) {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_modified(
                file.metadata().unwrap().modified().unwrap() - Duration::from_secs(61),
            )
            .unwrap();
        }
        let misses = place.hits().1;
        get(&cache, &name(0)).unwrap().unwrap();
        assert_eq!(place.hits().1, misses, "{i}");
    }
    assert!(disk(&own) > LIMIT / 2, "{}", disk(&own));
    let misses = place.hits().1;
    for i in (180..200).rev() {
        get(&cache, &name(i)).unwrap().unwrap();
    }
    assert_eq!(place.hits().1, misses);
    get(&cache, &name(1)).unwrap().unwrap();
    assert_eq!(place.hits().1, misses + 1);
    // a value larger than a quarter of the limit is not cached
    place.insert("large", vec![0; LIMIT as usize / 4]);
    get(&cache, "large").unwrap().unwrap();
    get(&cache, "large").unwrap().unwrap();
    assert_eq!(place.hits().1, misses + 3);
    // a smaller limit takes effect when the cache is opened
    place.cache_of(LIMIT / 4);
    assert!(disk(&own) <= LIMIT / 4 && disk(&own) == counted(&own));
}

/// An eviction that counts files without space, or files twice, removes all others.
#[test]
fn values_that_are_written_at_once_leave_the_cache_full() {
    let place = Place::new();
    let cache = place.cache();
    let own = place.own();
    for round in 0..20 {
        std::thread::scope(|threads| {
            for i in 0..64 {
                let cache = &cache;
                threads.spawn(move || {
                    let name = format!("{round}/{i}");
                    let value = pattern(i, 60_000);
                    cache.write(&name, "version", &value);
                });
            }
        });
        let size = disk(&own);
        assert!(
            (LIMIT / 2..=LIMIT).contains(&size) && size <= counted(&own),
            "round {round}: {size} bytes of {LIMIT}, {} are counted",
            counted(&own)
        );
    }
}

#[test]
fn a_lost_or_wrong_count_is_corrected() {
    let place = Place::new();
    let own = place.own();
    let read = |cache: &DiskCache, range: Range<usize>| {
        for i in range {
            place.insert(&format!("a/{i}"), pattern(i, 20_000));
            get(cache, &format!("a/{i}")).unwrap().unwrap();
        }
    };
    read(&place.cache(), 0..30);
    std::fs::write(own.join("used"), b"?").unwrap();
    let cache = place.cache();
    assert_eq!((counted(&own), files(&own).len()), (disk(&own), 30));
    // the state after a crash: counted but never written
    let used = [LIMIT - 10, 0].map(u64::to_le_bytes).concat();
    std::fs::write(own.join("used"), used).unwrap();
    std::fs::write(own.join("new-1-2-3"), vec![0; 5000]).unwrap();
    let file = std::fs::File::options()
        .write(true)
        .open(own.join("new-1-2-3"))
        .unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(2 * 3600))
        .unwrap();
    read(&cache, 30..31);
    assert_eq!((counted(&own), files(&own).len()), (disk(&own) + 8192, 31));
    // the abandoned file is evicted first
    read(&cache, 31..60);
    assert!(!own.join("new-1-2-3").exists() && disk(&own) == counted(&own) && disk(&own) <= LIMIT);
}

#[test]
fn a_failing_disk_does_not_prevent_reads() {
    let place = Place::new();
    let cache = place.cache();
    let own = place.own();
    place.insert("v", "value");
    get(&cache, "v").unwrap();
    std::fs::remove_dir_all(&own).unwrap();
    for _ in 0..2 {
        assert_eq!(get(&cache, "v").unwrap().unwrap(), b"value");
    }
    assert!(cache.warned.load(Ordering::Relaxed));
    assert_eq!(
        cache.put(&key("w"), b"1").unwrap(),
        place.server.stat(&key("w")).unwrap().unwrap().version
    );
    // another process was stopped while it held the lock
    let cache = place.cache();
    let held = std::fs::File::open(own.join("used")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let start = Instant::now();
    assert_eq!(get(&cache, "v").unwrap().unwrap(), b"value");
    assert!(start.elapsed() < Duration::from_secs(60) && files(&own).is_empty());
    drop(held);
    get(&cache, "v").unwrap();
    assert_eq!(files(&own).len(), 1);
}

#[test]
fn links_are_not_followed_and_other_users_are_excluded() {
    let place = Place::new();
    let cache = place.cache();
    let own = place.own();
    assert_eq!(
        std::fs::metadata(&own).unwrap().permissions().mode() & 0o777,
        0o700
    );
    place.insert("v", "value");
    get(&cache, "v").unwrap();
    let (path, _) = files(&own).remove(0);
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    // an entry that was moved elsewhere and replaced by a link is neither read nor written through
    // the link
    let outside = place.home.path().join("outside");
    std::fs::rename(&path, &outside).unwrap();
    let before = std::fs::read(&outside).unwrap();
    symlink(&outside, &path).unwrap();
    let hits = place.hits().0;
    get(&cache, "v").unwrap().unwrap();
    assert_eq!(
        (place.hits().0, std::fs::read(&outside).unwrap()),
        (hits, before)
    );
    assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
    // a subdirectory that is a link
    let level = path.parent().unwrap();
    let elsewhere = place.home.path().join("elsewhere");
    std::fs::rename(level, &elsewhere).unwrap();
    symlink(&elsewhere, level).unwrap();
    get(&cache, "v").unwrap().unwrap();
    assert_eq!(place.hits().0, hits);
    // the cache's own subdirectory
    let open = || {
        DiskCache::open(
            place.calls.clone(),
            &place.home.path().join("cache"),
            LIMIT,
            place.stats.clone(),
        )
    };
    std::fs::set_permissions(&own, PermissionsExt::from_mode(0o770)).unwrap();
    let e = open().err().unwrap();
    assert!(
        e.errno() == libc::EACCES && e.message().contains("must be yours alone (chmod 700)"),
        "{e}"
    );
    std::fs::remove_file(level).unwrap();
    std::fs::rename(&own, place.home.path().join("moved")).unwrap();
    symlink(place.home.path().join("moved"), &own).unwrap();
    assert!(open().is_err());
}

/// Environment variable that is set in a process that shares a cache with others.
const SHARED: &str = "ZARRFS_TEST_SHARED_CACHE";

fn child(home: &Path, seed: usize) -> Child {
    let name = "store::disk_cache::tests::processes_share_a_cache_and_may_be_killed";
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture"])
        .env(SHARED, format!("{seed}:{}", home.display()));
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

/// Reads random values and checks them against the server, whose content is the same in each
/// process. Returns the number of hits and misses.
fn use_cache(directory: &Path, mut seed: usize, rounds: usize) -> (u64, u64) {
    let server = Arc::new(Server::default());
    let stats = Arc::new(Stats::default());
    let value = |i: usize| pattern(i, 3000 + 517 * i);
    (0..60).for_each(|i| server.values.insert(&format!("{i}"), value(i)));
    let cache = DiskCache::open(server, directory, LIMIT / 2, stats.clone()).unwrap();
    for _ in 0..rounds {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let i = (seed >> 33) % 60;
        assert_eq!(get(&cache, &format!("{i}")).unwrap().unwrap(), value(i));
        if seed >> 20 & 15 == 0 {
            cache.remove(&key(&format!("{i}")));
        }
    }
    (stats.disk_cache_hits.get(), stats.disk_cache_misses.get())
}

#[test]
fn processes_share_a_cache_and_may_be_killed() {
    if let Ok(told) = std::env::var(SHARED) {
        let (seed, home) = told.split_once(':').unwrap();
        use_cache(Path::new(home), seed.parse().unwrap(), 3000);
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let own = home.path().join("zarrfs-cache-1");
    use_cache(home.path(), 1, 100);
    let mut children: Vec<_> = (2..5).map(|seed| child(home.path(), seed)).collect();
    for seed in 10..16 {
        let mut killed = child(home.path(), seed);
        std::thread::sleep(Duration::from_millis(40));
        // the lock keeps files from being published during the count, which could count both a file
        // and its replacement
        let lock = std::fs::File::open(own.join("used")).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert!(disk(&own) <= LIMIT / 2, "{}", disk(&own));
        drop(lock);
        killed.kill().unwrap();
        killed.wait().unwrap();
    }
    let shared = home.path();
    std::thread::scope(|scope| {
        for seed in 20..24 {
            scope.spawn(move || use_cache(shared, seed, 500));
        }
    });
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    assert!(
        disk(&own) <= LIMIT / 2 && disk(&own) <= counted(&own),
        "{} of {}",
        disk(&own),
        counted(&own)
    );
    let (hits, misses) = use_cache(home.path(), 99, 300);
    // about half of the values fit; temporary files of killed processes may take more than a third
    // of the space
    assert!(10 * hits > misses, "{hits} {misses}");
}

#[test]
fn derived_bytes_are_kept_with_the_version_of_their_value() {
    let place = Place::new();
    let key = Key::normalize("a/0.0").unwrap();
    let version = place.server.put(&key, b"value").unwrap();
    let mut bytes = Vec::new();
    assert_eq!(place.cache().derived(&key, "points", &mut bytes), None);
    place
        .cache()
        .keep_derived(&key, "points", &version, b"derived");
    let kept = place.cache().derived(&key, "points", &mut bytes);
    assert_eq!(
        (kept, &bytes[..]),
        (Some(version.to_string()), &b"derived"[..])
    );
    // neither the value nor what has another name
    assert_eq!(place.cache().derived(&key, "other", &mut bytes), None);
    assert_eq!(
        place.cache().get(&key, 100, &mut bytes).unwrap(),
        Some(version)
    );
    assert_eq!(bytes, b"value");
}
