use super::*;
use crate::metadata::CodecConfig;
use proptest::prelude::*;
use zarrfs_base::json::{self, json};

fn level(shape: &[u64], axes: &[usize], crc: bool, at_start: bool) -> ShardLevel {
    let crc32c = CodecConfig::parse(&json!({"id": "crc32c"})).unwrap();
    ShardLevel {
        shape: shape.to_vec(),
        edges: None,
        axes: axes.to_vec(),
        index_codecs: if crc { vec![crc32c] } else { Vec::new() },
        is_index_big_endian: false,
        is_index_at_start: at_start,
        around: Vec::new(),
    }
}

fn metadata(shape: &[u64], chunks: &[u64], shards: Vec<ShardLevel>) -> ArrayMetadata {
    let document = json!({"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "<u2", "order": "C",
        "fill_value": 0, "compressor": null, "filters": null});
    let metadata = ArrayMetadata::parse(json::write(&document).as_bytes()).unwrap();
    ArrayMetadata { shards, ..metadata }
}

#[test]
fn chunks_have_their_object_and_slots() {
    // shards of 8 x 12, in them shards of 4 x 6 whose index has its dimensions swapped, in them
    // chunks of 2 x 3
    let levels = vec![
        level(&[8, 12], &[0, 1], true, false),
        level(&[4, 6], &[1, 0], true, false),
    ];
    let shards = Shards::new(&metadata(&[20, 20], &[2, 3], levels))
        .unwrap()
        .unwrap();
    let chunk = [5, 2];
    assert_eq!(
        (shards.shard(0, &chunk).number, shards.slot(0, &chunk)),
        (2, 1)
    );
    assert_eq!(
        shards.shard(1, &chunk),
        ShardId {
            level: 1,
            number: 2 * 4 + 1
        }
    );
    assert_eq!(
        shards.slot(1, &chunk),
        1,
        "row 1 and column 0, columns first"
    );
    let grid = Grid::new(&[20, 20], &[2, 3], 2).unwrap();
    // the array has 10 x 7 chunks, the last object 2 x 3 of them
    assert_eq!(
        shards
            .members(5, &grid)
            .map(|chunk| grid.indices(chunk))
            .collect::<Vec<_>>(),
        [[8, 4], [8, 5], [8, 6], [9, 4], [9, 5], [9, 6]]
    );
}

#[test]
fn damaged_entries_do_not_affect_others() {
    let codec = IndexCodec::new(&level(&[4], &[0], false, false), 8).unwrap();
    assert_eq!(
        (codec.stored_size(), codec.place(300).unwrap()),
        (128, 172..300)
    );
    let numbers: [(u64, u64); 8] = [
        (0, 10),
        (172, 1),
        (171, 1),
        (u64::MAX, u64::MAX),
        (u64::MAX, 3),
        (3, u64::MAX),
        (u64::MAX - 1, 5),
        (5, 0),
    ];
    let bytes: Vec<u8> = numbers
        .iter()
        .flat_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()].concat())
        .collect();
    let index = codec.decode(&bytes, 300).unwrap();
    let ok: Vec<_> = (0..8).map(|slot| index.get(slot).ok()).collect();
    assert_eq!(
        ok,
        [
            Some(Some(0..10)),
            None,
            Some(Some(171..172)),
            Some(None),
            None,
            None,
            None,
            None
        ]
    );
    assert!(
        index.get(8).is_err()
            && codec.place(127).is_err()
            && codec.decode(&bytes[1..], 300).is_err()
    );
}

#[test]
fn an_entry_inside_the_index_is_an_error() {
    let codec = IndexCodec::new(&level(&[1], &[0], true, true), 1).unwrap();
    assert_eq!(codec.place(100).unwrap(), 0..20);
    let mut bytes = [19u64.to_le_bytes(), 5u64.to_le_bytes()].concat();
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    assert!(codec.decode(&bytes, 100).unwrap().get(0).is_err());
    bytes[3] ^= 1;
    assert!(codec.decode(&bytes, 100).is_err(), "the checksum");
}

#[test]
fn a_shard_of_2_63_bytes_is_refused() {
    let codec = IndexCodec::new(&level(&[1], &[0], true, false), 1).unwrap();
    let refusal = |len| {
        codec
            .rebuild(None, &[(0, EntryChange::Put(len))].into())
            .map(drop)
            .map_err(|e| e.errno())
    };
    assert_eq!(refusal(i64::MAX as u64 - 20), Ok(()));
    assert_eq!(
        refusal(i64::MAX as u64 - 19),
        Err(libc::EFBIG),
        "the index follows"
    );
}

#[test]
fn scattered_chunks_stay_in_a_bounded_number_of_ranges() {
    let count = 3 * MAX_RANGES;
    let codec = IndexCodec::new(&level(&[count as u64], &[0], false, false), count).unwrap();
    // the last chunk comes first; gaps of 1 byte, and after four chunks of 36
    let place = |slot: usize| {
        let n = (count - 1 - slot) as u64;
        (n / 4 * 43 + n % 4 * 2, 1)
    };
    let entries: Vec<(u64, u64)> = (0..count).map(place).collect();
    let size = place(0).0 + 1;
    let old = codec
        .decode(&codec.encode(&entries).unwrap(), size + codec.stored_size())
        .unwrap();
    let pieces = codec
        .rebuild(Some(&old), &[(7, EntryChange::Put(5))].into())
        .unwrap()
        .unwrap();
    let mut moved = Vec::new();
    let mut position = 0;
    let mut index = Vec::new();
    for piece in pieces {
        match piece {
            ShardPiece::Old(range) => {
                let len = range.end - range.start;
                moved.push((range, position));
                position += len;
            }
            ShardPiece::New(slot) => {
                assert_eq!(slot, 7);
                position += 5;
            }
            ShardPiece::Index(bytes) => index = bytes,
        }
    }
    assert!(
        moved.len() <= MAX_RANGES && position < size / 4,
        "{} {position}",
        moved.len()
    );
    let new = codec
        .decode(&index, position + codec.stored_size())
        .unwrap();
    for slot in (0..count).filter(|slot| *slot != 7) {
        let from = place(slot).0;
        let to = new.get(slot).unwrap().unwrap();
        let (range, start) = &moved[moved.partition_point(|(range, _)| range.start <= from) - 1];
        assert_eq!(
            (to.start, to.end),
            (start + from - range.start, start + from - range.start + 1),
            "{slot}"
        );
    }
    assert_eq!(new.get(7), Ok(Some(position - 5..position)));
}

proptest! {
    #[test]
    fn every_entry_lies_in_the_shard_or_is_an_error(
        bytes in prop::collection::vec(any::<u8>(), 64), size in 0u64..200, at_start: bool,
    ) {
        let codec = IndexCodec::new(&level(&[4], &[0], false, at_start), 4).unwrap();
        let Ok(index) = codec.decode(&bytes, size) else { return Ok(()) };
        for slot in 0..4 {
            if let Ok(Some(range)) = index.get(slot) {
                let place = codec.place(size).unwrap();
                prop_assert!(range.start < range.end && range.end <= size);
                prop_assert!(range.end <= place.start || range.start >= place.end);
            }
        }
    }

    #[test]
    fn chunks_and_slots_correspond(dims in prop::collection::vec((1u64..4, 1u64..4, 1u64..4, 1u64..30), 1..=3)) {
        let chunks: Vec<u64> = dims.iter().map(|d| d.0).collect();
        let inner: Vec<u64> = dims.iter().map(|d| d.0 * d.1).collect();
        let outer: Vec<u64> = dims.iter().map(|d| d.0 * d.1 * d.2).collect();
        let shape: Vec<u64> = dims.iter().map(|d| d.3).collect();
        let axes: Vec<usize> = (0..dims.len()).rev().collect();
        let levels = vec![level(&outer, &axes, false, false), level(&inner, &axes, false, false)];
        let shards = Shards::new(&metadata(&shape, &chunks, levels)).unwrap().unwrap();
        let grid = Grid::new(&shape, &chunks, 2).unwrap();
        let mut seen = std::collections::HashSet::new();
        for object in 0..shards.objects().chunk_count() {
            for chunk in shards.members(object, &grid) {
                let indices = grid.indices(chunk);
                prop_assert_eq!(shards.shard(0, &indices).number, object);
                prop_assert!(seen.insert((object, shards.slot(0, &indices), shards.slot(1, &indices))));
            }
        }
        prop_assert_eq!(seen.len() as u64, grid.chunk_count());
    }

    #[test]
    fn a_rebuilt_shard_has_the_changed_chunks_and_all_others(
        entries in prop::collection::vec((0u64..60, 0u64..20), 6),
        absent in prop::collection::vec(any::<bool>(), 6),
        changes in prop::collection::btree_map(0usize..6, prop::option::of(1u64..30), 0..6),
        crc: bool, at_start: bool, has_old: bool,
    ) {
        let codec = IndexCodec::new(&level(&[6], &[0], crc, at_start), 6).unwrap();
        let entries: Vec<(u64, u64)> = entries.iter().zip(&absent)
            .map(|(entry, absent)| if *absent { (u64::MAX, u64::MAX) } else { (entry.0 + 20 * u64::from(at_start), entry.1) })
            .collect();
        let index = codec.encode(&entries).unwrap();
        let room: Vec<u8> = (0..70).collect();
        let shard = if at_start { [index.clone(), room].concat() } else { [room, index.clone()].concat() };
        let old = has_old.then(|| codec.decode(&index, shard.len() as u64).unwrap());
        let read = |shard: &[u8], index: Option<&Index>, slot| {
            let found = index.map_or(Ok(None), |index| index.get(slot));
            found.map(|range| range.map(|range| shard[range.start as usize..range.end as usize].to_vec())).map_err(drop)
        };
        let bytes = |slot: usize, len: u64| vec![200 + slot as u8; len as usize];
        let changed = changes.iter().map(|(slot, len)| (*slot, len.map_or(EntryChange::Erase, EntryChange::Put))).collect();
        let pieces = codec.rebuild(old.as_ref(), &changed).unwrap();
        let rebuilt = pieces.map(|pieces| pieces.into_iter().flat_map(|piece| match piece {
            ShardPiece::Old(range) => shard[range.start as usize..range.end as usize].to_vec(),
            ShardPiece::New(slot) => bytes(slot, changes[&slot].unwrap()),
            ShardPiece::Index(index) => index,
        }).collect::<Vec<u8>>());
        let expected = |slot| match changes.get(&slot) {
            Some(change) => Ok(change.map(|len| bytes(slot, len))),
            None => read(&shard, old.as_ref(), slot),
        };
        let Some(rebuilt) = rebuilt else {
            prop_assert!((0..6).all(|slot| expected(slot) == Ok(None)));
            return Ok(());
        };
        let size = rebuilt.len() as u64;
        let place = codec.place(size).unwrap();
        let index = codec.decode(&rebuilt[place.start as usize..place.end as usize], size).unwrap();
        for slot in 0..6 {
            prop_assert_eq!(read(&rebuilt, Some(&index), slot), expected(slot), "{}", slot);
        }
        // the waste that stays is at most a quarter of the former bytes
        let live: u64 = (0..6).filter_map(|slot| index.get(slot).ok()?).map(|range| range.end - range.start).sum();
        prop_assert!(size - codec.stored_size() <= live + 70 / 4);
    }
}
