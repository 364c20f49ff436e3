use super::*;
use zarrfs_base::error::Result;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::{
    ByteRange, Capabilities, Key, Listing, MemoryStore, Readable, Stat, Store, delegate_store,
};

fn tag(n: u64) -> VersionTag {
    VersionTag::of(Some(&Version::Count(n)))
}

/// A store that may be remote.
struct MaybeRemote {
    below: MemoryStore,
    concurrency: usize,
}

impl Readable for MaybeRemote {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            concurrency: self.concurrency,
            ..Capabilities::default()
        }
    }

    delegate_store!(below: read stat list location);
}

impl Store for MaybeRemote {
    delegate_store!(below: check_writable put_pieces);
}

/// Returns a store with `stored` chunks and an array of it. The array has many chunks of one byte.
fn array_in(concurrency: usize, stored: u64) -> (Arc<MaybeRemote>, Array) {
    let document = br#"{"zarr_format":2,"shape":[1000000],"chunks":[1],"dtype":"|u1","compressor":null,"fill_value":0,
        "order":"C","filters":null}"#;
    let store = Arc::new(MaybeRemote {
        below: MemoryStore::default(),
        concurrency,
    });
    for chunk in 0..stored {
        store.below.insert(&format!("{chunk}"), [1]);
    }
    let metadata = ArrayMetadata::parse(document).unwrap();
    let array = Array::new(Key::root(), metadata, store.clone(), Arc::default()).unwrap();
    (store, array)
}

fn array(stored: u64) -> (Arc<MaybeRemote>, Array) {
    array_in(1, stored)
}

fn stored_tag(array: &Array, chunk: u64) -> VersionTag {
    VersionTag::of(
        array
            .stat_chunk(ChunkId(chunk))
            .unwrap()
            .as_ref()
            .map(|stat| &stat.version),
    )
}

fn open(served: &ServedVersions, array: &Array) -> bool {
    served.begin_opening(array, &array.freshness().lock_opening())
}

#[test]
fn an_opening_makes_earlier_confirmations_stale() {
    let a = Freshness::default();
    let b = Freshness::default();
    assert!(a.is_current(Opening::default()), "before the first opening");
    a.begin_opening();
    let first = a.opening();
    assert!(first > Opening::default() && a.is_current(first) && !a.is_current(Opening::default()));
    a.begin_opening();
    assert!(a.opening() > first && !a.is_current(first));
    // a confirmation in a later opening of another array is newer, too
    b.begin_opening();
    assert!(b.opening() > a.opening() && a.is_current(b.opening()) && !b.is_current(a.opening()));
}

#[test]
fn generations_count_writes_and_stores() {
    let freshness = Freshness::default();
    assert_eq!((freshness.writes(), freshness.stores()), (0, 0));
    assert_eq!(freshness.last_write(), SystemTime::UNIX_EPOCH);
    let before = SystemTime::now();
    freshness.record_write();
    freshness.record_write();
    assert_eq!((freshness.writes(), freshness.stores()), (2, 0));
    assert!(freshness.last_write() >= before && freshness.last_write() <= SystemTime::now());
    let stores = freshness.stores();
    assert!(!freshness.has_stored_since(stores));
    freshness.record_store();
    assert!(freshness.has_stored_since(stores) && !freshness.has_stored_since(freshness.stores()));
    assert_eq!((freshness.writes(), freshness.stores()), (2, 1));
}

#[test]
fn dirty_chunks_are_counted() {
    let freshness = Freshness::default();
    assert!(!freshness.is_dirty());
    freshness.add_dirty();
    freshness.add_dirty();
    freshness.remove_dirty();
    assert!(freshness.is_dirty());
    freshness.remove_dirty();
    assert!(!freshness.is_dirty());
}

#[test]
fn a_replaced_array_is_also_superseded() {
    let a = Freshness::default();
    let b = Freshness::default();
    a.supersede();
    assert!(a.is_superseded() && !a.is_replaced() && !b.is_superseded());
    b.replace();
    assert!(b.is_superseded() && b.is_replaced());
}

#[test]
fn a_resized_array_shares_the_losses_of_its_predecessor() {
    let old = Freshness::default();
    let new = Freshness::default();
    old.record_loss();
    assert_eq!((old.losses(), new.losses()), (1, 0));
    new.share_losses(&old);
    assert_eq!(new.losses(), 1);
    new.record_loss();
    assert_eq!((old.losses(), new.losses()), (2, 2));
}

#[test]
fn openings_of_one_array_exclude_each_other() {
    let freshness = Freshness::default();
    let held = freshness.lock_opening();
    assert!(freshness.opening_lock.try_lock().is_err());
    drop(held);
    assert!(freshness.opening_lock.try_lock().is_ok());
}

#[test]
fn tags_distinguish_versions_arrays_and_states() {
    let (_, a) = array(0);
    let (_, b) = array(0);
    let version = Version::Count(1);
    let all = [
        VersionTag::MIXED,
        VersionTag::UNINITIALIZED,
        VersionTag::UNSTORED,
        tag(1),
        tag(2),
        VersionTag::of_array(&a, None),
        VersionTag::of_array(&b, None),
        VersionTag::of_array(&a, Some(&version)),
        VersionTag::of_array(&a, Some(&Version::Count(2))),
    ];
    for (i, one) in all.iter().enumerate() {
        assert!(all[i + 1..].iter().all(|other| other != one), "{i}");
    }
    assert_eq!(tag(1), tag(1));
    assert_eq!(VersionTag::of(None), VersionTag::UNINITIALIZED);
    // no hash equals a constant; all other bits of a hash count
    assert!(all[..3].iter().all(|tag| tag.0 >> 63 == 1));
    let tags: Vec<u64> = (0..200).map(|n| tag(n).0).collect();
    assert!(tags.iter().all(|tag| tag >> 63 == 0));
    assert!(tags.iter().any(|tag| tag >> 62 == 1) && tags.iter().any(|tag| tag & 1 == 1));
}

#[test]
fn versions_are_stored_only_if_all_of_them_are() {
    let (store, array) = array(3);
    let expected: Vec<_> = (0..4)
        .map(|chunk| (ChunkId(chunk), stored_tag(&array, chunk)))
        .collect();
    assert!(are_stored(&array, &[]) && are_stored(&array, &expected));
    for chunk in 0..3 {
        store.below.insert(&format!("{chunk}"), [2]);
        assert!(!are_stored(&array, &expected));
        assert!(are_stored(&array, &expected[chunk + 1..]));
    }
    store.below.insert("3", [2]);
    assert!(
        !are_stored(&array, &expected[3..]),
        "a chunk that was uninitialized"
    );
}

/// A store that stops answering.
struct Silent;

impl Readable for Silent {
    fn read(&self, _: &Key, _: &ByteRange, _: &mut Vec<u8>) -> Result<Option<Stat>> {
        Ok(None)
    }

    fn stat(&self, _: &Key) -> Result<Option<Stat>> {
        Ok(None)
    }

    fn stat_many(
        &self,
        _: &mut dyn Iterator<Item = Key>,
        _: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
    }

    fn list(&self, _: &Key) -> Result<Listing> {
        Ok(Box::new(std::iter::empty()))
    }

    fn location(&self) -> String {
        "silent".into()
    }
}

impl Store for Silent {}

#[test]
fn a_version_without_an_answer_is_not_stored() {
    let metadata = array(0).1.metadata().clone();
    let array = Array::new(Key::root(), metadata, Arc::new(Silent), Arc::default()).unwrap();
    assert!(are_stored(&array, &[]));
    assert!(!are_stored(
        &array,
        &[(ChunkId(0), VersionTag::UNINITIALIZED)]
    ));
}

#[test]
fn the_kernel_keeps_its_pages_while_the_store_holds_the_served_versions() {
    let (store, array) = array(3);
    let served = ServedVersions::default();
    let before = array.freshness().opening();
    assert!(!open(&served, &array), "what was served before is unknown");
    assert!(array.freshness().opening() > before);
    assert!(open(&served, &array), "nothing was served");
    for chunk in 0..4 {
        served.record(array.id(), ChunkId(chunk), stored_tag(&array, chunk));
    }
    assert!(
        open(&served, &array) && open(&served, &array),
        "the list outlives an opening"
    );
    store.below.insert("1", [2]);
    assert!(!open(&served, &array));
    assert!(open(&served, &array), "the pages were dropped");
}

#[test]
fn a_chunk_served_in_two_versions_is_never_current() {
    let (store, array) = array(1);
    let served = ServedVersions::default();
    open(&served, &array);
    let first = stored_tag(&array, 0);
    served.record(array.id(), ChunkId(0), first);
    served.record(array.id(), ChunkId(0), first);
    assert!(open(&served, &array), "one version, served twice");
    store.below.insert("0", [2]);
    served.record(array.id(), ChunkId(0), stored_tag(&array, 0));
    assert!(!open(&served, &array));
}

#[test]
fn a_chunk_stored_by_this_mount_leaves_pages_valid_unless_another_version_was_served() {
    let (_, array) = array(1);
    let now = stored_tag(&array, 0);
    // version served, version written over, whether the pages stay valid
    let cases = [
        (Some(tag(7)), Some(tag(7)), true),
        (Some(tag(7)), Some(tag(8)), false),
        (Some(tag(7)), None, true),
        (Some(VersionTag::MIXED), None, true),
        (None, Some(tag(7)), true),
        (None, None, true),
    ];
    for (before, below, valid) in cases {
        let served = ServedVersions::default();
        open(&served, &array);
        before
            .into_iter()
            .for_each(|before| served.record(array.id(), ChunkId(0), before));
        served.record_store(array.id(), ChunkId(0), below, now);
        assert_eq!(open(&served, &array), valid, "{before:?} {below:?}");
    }
    let served = ServedVersions::default();
    open(&served, &array);
    served.record_store(array.id(), ChunkId(0), None, tag(9));
    assert!(!open(&served, &array), "a store is recorded like a read");
}

#[test]
fn an_opening_blocks_only_for_many_versions() {
    let (_, local) = array(0);
    let (_, remote) = array_in(2, 0);
    for (array, quick) in [(local, MAX_QUICK_CHECKS), (remote, 0)] {
        let served = ServedVersions::default();
        assert!(!served.may_block(&array));
        open(&served, &array);
        (0..quick as u64).for_each(|chunk| served.record(array.id(), ChunkId(chunk), tag(chunk)));
        assert!(!served.may_block(&array));
        served.record(array.id(), ChunkId(quick as u64), tag(0));
        assert!(served.may_block(&array));
    }
    assert_eq!((MAX_QUICK_CHECKS, MAX_REMOTE_CHECKS), (1000, 64));
}

#[test]
fn an_opening_of_a_remote_array_revalidates_few_versions() {
    for (concurrency, count, expected) in [(2, 64, true), (2, 65, false), (1, 65, true)] {
        let (_, array) = array_in(concurrency, 0);
        let served = ServedVersions::default();
        open(&served, &array);
        for chunk in 0..count {
            served.record(array.id(), ChunkId(chunk), VersionTag::UNINITIALIZED);
        }
        assert_eq!(open(&served, &array), expected, "{concurrency} {count}");
    }
}

fn totals(served: &ServedVersions) -> (usize, usize) {
    let table = lock(&served.table);
    assert_eq!(
        table.total,
        table.arrays.values().map(HashMap::len).sum::<usize>()
    );
    (table.arrays.len(), table.total)
}

#[test]
fn too_many_chunks_of_one_array_are_forgotten() {
    assert_eq!(MAX_PER_ARRAY, 65_536);
    let served = ServedVersions::default();
    served.record(1, ChunkId(0), tag(0));
    assert_eq!(totals(&served), (0, 0), "an array that was never opened");
    served.restart(1);
    served.restart(2);
    (0..3).for_each(|chunk| served.record(2, ChunkId(chunk), tag(0)));
    for chunk in 0..65_536 {
        served.record(1, ChunkId(chunk), tag(0));
    }
    assert_eq!(totals(&served), (2, 65_539));
    served.record(1, ChunkId(0), tag(1));
    assert_eq!(
        totals(&served),
        (2, 65_539),
        "a chunk that is recorded already"
    );
    served.record(1, ChunkId(65_536), tag(0));
    assert_eq!(totals(&served), (1, 3));
    assert!(served.restart(1).is_none());
    assert_eq!(served.restart(2).unwrap().len(), 3);
    assert_eq!(totals(&served), (2, 0));
}

#[test]
fn too_many_chunks_of_all_arrays_are_forgotten() {
    assert_eq!(MAX_TOTAL, 262_144);
    let served = ServedVersions::default();
    for array in 0..8 {
        served.restart(array);
        (0..32_768).for_each(|chunk| served.record(array, ChunkId(chunk), tag(0)));
    }
    assert_eq!(totals(&served), (8, 262_144));
    served.record(7, ChunkId(40_000), tag(0));
    assert_eq!(totals(&served), (0, 0));
}

#[test]
fn too_many_arrays_are_forgotten() {
    assert_eq!(MAX_ARRAYS, 16_384);
    let served = ServedVersions::default();
    for array in 0..16_384 {
        assert!(served.restart(array).is_none());
        served.record(array, ChunkId(0), tag(0));
    }
    assert_eq!(totals(&served), (16_384, 16_384));
    assert!(served.restart(20_000).is_none());
    assert_eq!(totals(&served), (1, 0));
}
