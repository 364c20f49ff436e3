use super::*;
use std::collections::BTreeSet;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::testing::UnlistedStore;
use zarrfs_store::{Key, MemoryStore, Store};

const COUNTS: [u64; 2] = [7, 1000];

/// Returns an array of chunks of 2 x 3 items, the last ones of which are cut, in which the chunks
/// with these numbers are stored.
fn array(stored: &BTreeSet<u64>, is_listed: bool) -> Arc<Array> {
    let document = r#"{"zarr_format":2,"shape":[13,2999],"chunks":[2,3],"dtype":"|u1","compressor":null,"fill_value":0,
        "order":"C","filters":null,"dimension_separator":"."}"#;
    let store = MemoryStore::default();
    for number in stored {
        let key = format!("a/{}.{}", number / COUNTS[1], number % COUNTS[1]);
        store.insert(&key, "012345");
    }
    let store: Arc<dyn Store> = if is_listed {
        Arc::new(store)
    } else {
        Arc::new(UnlistedStore::new(Arc::new(store)))
    };
    let metadata = ArrayMetadata::parse(document.as_bytes()).unwrap();
    let key = Key::normalize("a").unwrap();
    Arc::new(Array::new(key, metadata, store, Arc::default()).unwrap())
}

/// Returns the numbers of the chunks in boxes.
fn numbers(boxes: &[ChunkBox]) -> Vec<u64> {
    let rows = boxes.iter().flat_map(|of| {
        let [columns_start, columns_end] = of[1];
        (of[0][0]..of[0][1]).flat_map(move |row| {
            (columns_start..columns_end).map(move |column| row * COUNTS[1] + column)
        })
    });
    let mut numbers: Vec<u64> = rows.collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn ranges_are_the_same_in_any_number_of_listings() {
    let stored: BTreeSet<u64> = (0..7000).filter(|n| n % 11 < 5 || n / 1000 == 3).collect();
    let absent: Vec<u64> = (0..7000).filter(|n| !stored.contains(n)).collect();
    let listed = array(&stored, true);
    let in_one: Result<Vec<ChunkBox>> = AbsentChunks::new(&listed).collect();
    let in_one = in_one.unwrap();
    assert_eq!(numbers(&in_one), absent);
    // 7,000 chunks are 14 blocks
    for max_blocks in [1, 3] {
        let found: Result<Vec<ChunkBox>> = AbsentChunks::bounded(&listed, max_blocks).collect();
        assert_eq!(found.unwrap(), in_one);
    }
    let asked: Result<Vec<ChunkBox>> = AbsentChunks::new(&array(&stored, false)).collect();
    assert_eq!(asked.unwrap(), in_one);
}

#[test]
fn items_are_those_inside_the_array() {
    let rectangle = |n: &u64| (5..7).contains(&(n / 1000)) && n % 1000 >= 998;
    let stored = (0..7000).filter(|n| !rectangle(n)).collect();
    let array = array(&stored, true);
    let found: Result<Vec<ChunkBox>> = AbsentChunks::new(&array).collect();
    assert_eq!(found.as_ref().unwrap(), &[vec![[5, 7], [998, 1000]]]);
    assert_eq!(
        items_of(&array, &found.unwrap()[0]),
        [[10, 13], [2994, 2999]]
    );
}
