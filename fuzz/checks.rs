//! Properties that must hold for any input. The fuzz targets check them, and so does the test that
//! replays their corpora.
//!
//! cargo fuzz run metadata -- -max_total_time=180 -dict=fuzz/json.dict -max_len=2048
//! -malloc_limit_mb=64 cargo fuzz run metadata3 -- -max_total_time=180 -dict=fuzz/json3.dict
//! -max_len=2048 -malloc_limit_mb=64 cargo fuzz run shard_index -- -max_total_time=180 -max_len=512
//! -malloc_limit_mb=64 cargo fuzz run rebuild -- -max_total_time=180 -max_len=512
//! -malloc_limit_mb=64 cargo fuzz run references -- -max_total_time=180 -dict=fuzz/json.dict
//! -max_len=2048 -malloc_limit_mb=64 cargo fuzz run codecs -- -max_total_time=180
//! -dict=fuzz/json.dict -max_len=2048 -malloc_limit_mb=300 cargo fuzz run icechunk --
//! -max_total_time=180 -max_len=8192 -malloc_limit_mb=64 cargo fuzz run ingest --
//! -max_total_time=180 -max_len=4096 -malloc_limit_mb=64
//!
//! The codecs target needs its higher malloc limit because liblzma may use up to 256 MiB.
//! cargo-fuzz needs a nightly toolchain, or RUSTC_BOOTSTRAP=1.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use zarrfs_base::json;
use zarrfs_base::spill_file::unnamed_file;
use zarrfs_format::codec::build;
use zarrfs_format::dtype::DType;
use zarrfs_format::grid::{ChunkId, Grid};
use zarrfs_format::metadata::v3::merge::{differs_v3, merged_v3};
use zarrfs_format::metadata::v3::node::{check_group_v3, member, node_type, without_consolidated};
use zarrfs_format::metadata::v3::shown::shown_array;
use zarrfs_format::metadata::{ArrayMetadata, CodecConfig, Separator, ShardLevel, V1Order};
use zarrfs_format::pipeline::Pipeline;
use zarrfs_format::shard::{EntryChange, Index, IndexCodec, ShardPiece, Shards};
use zarrfs_icechunk::IcechunkStore;
use zarrfs_ingest::{Incoming, ItemSource};
use zarrfs_reference::ReferenceStore;

/// Maximum size in bytes of chunks that are decoded.
const SMALL: usize = 1 << 16;

/// Maximum number of bytes that reading an array of TIFF may take for it to be read.
const LARGE: usize = 128 << 20;

/// Parses any bytes as an array's metadata document, in every way in which zarrfs reads one.
pub fn metadata(document: &[u8]) {
    let readings = [
        ArrayMetadata::parse(document),
        ArrayMetadata::parse_v1(document, V1Order::Zarr1),
        ArrayMetadata::parse_v1(document, V1Order::Spec),
    ];
    for meta in readings.into_iter().flatten() {
        view(&meta);
        if let Some(grid) = grid(&meta) {
            pipeline(&meta, &grid);
        }
    }
}

/// Checks that the document that the mount shows as `.zarray` describes the same array.
fn view(meta: &ArrayMetadata) {
    let text = meta.shown_document();
    let shown = ArrayMetadata::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(
        (&shown.shape, &shown.chunks, &shown.dtype, shown.order),
        (&meta.shape, &meta.chunks, &meta.dtype, meta.order)
    );
    // a missing fill value reads as zeros
    assert_eq!(
        shown.fill.as_deref().unwrap_or_default(),
        meta.fill.as_deref().unwrap_or_default()
    );
    assert_eq!(shown.shown_document(), text);
}

fn grid(meta: &ArrayMetadata) -> Option<Grid> {
    let grid = match meta.grid(&meta.shape) {
        Ok(grid) => grid,
        // a grid may not hold the number of zero-byte items
        Err(_) if meta.dtype.size() == 0 => return None,
        Err(e) => panic!("{e}: {:?} {:?}", meta.shape, meta.chunks),
    };
    let ends = [0, grid.size() / 2, grid.size().saturating_sub(100)];
    for run in ends
        .into_iter()
        .flat_map(|at| grid.runs(at..at.saturating_add(100)).take(100))
    {
        assert!(
            run.chunk.0 < grid.chunk_count()
                && run.len > 0
                && run.offset + run.len <= grid.chunk_size(run.chunk)
        );
        assert!(grid.next_in_chunk(run.chunk, 0).is_some());
    }
    for id in [0, grid.chunk_count().saturating_sub(1)]
        .into_iter()
        .filter(|&id| id < grid.chunk_count())
    {
        for separator in [Separator::Dot, Separator::Slash] {
            let key = grid.chunk_key(ChunkId(id), separator);
            assert_eq!(
                grid.parse_chunk_key(&key, separator),
                Some(ChunkId(id)),
                "{key}"
            );
        }
    }
    Some(grid)
}

fn pipeline(meta: &ArrayMetadata, grid: &Grid) {
    let Ok(pipeline) = Pipeline::new(meta, grid.max_chunk_size()) else {
        return;
    };
    if grid.max_chunk_size() > SMALL || meta.has_objects() {
        return;
    }
    decode(&pipeline, grid.max_chunk_size());
    let last = grid
        .chunk_count()
        .checked_sub(1)
        .filter(|_| meta.edges.is_some());
    for chunk in last
        .into_iter()
        .flat_map(|last| [0, last / 2, last])
        .map(ChunkId)
    {
        let codecs = meta.codecs_of_shape(&meta.chunk_shape(&grid.indices(chunk)));
        // a codec may refuse a shape, for example one with an odd number of items
        let Ok((filters, _)) = codecs else { continue };
        if let Ok(pipeline) = Pipeline::with_filters(meta, &filters, grid.chunk_size(chunk)) {
            decode(&pipeline, grid.chunk_size(chunk));
        }
    }
}

/// Checks that some short inputs are refused or decode to `size` bytes.
fn decode(pipeline: &Pipeline, size: usize) {
    let mut decoded = Vec::new();
    for stored in [&[][..], &[0; 16], b"\x78\x9c\x03\x00\x00\x00\x00\x01"] {
        if pipeline.decode(stored, &mut decoded).is_ok() {
            assert_eq!(decoded.len(), size);
        }
    }
}

/// Parses any bytes as a `zarr.json`. Checks that two documents describe the same array: the one
/// that the mount shows, and the one that the mount stores if a user writes the shown one back.
pub fn metadata3(document: &[u8]) {
    group3(document);
    let Ok(meta) = ArrayMetadata::parse_v3(document) else {
        return;
    };
    let stored = json::parse_object(document).unwrap_or_else(|e| panic!("{e}"));
    let fields = json::Value::Object(shown_array(&stored, &meta));
    let text = json::respell(document, &fields);
    let text = text.unwrap_or_else(|| json::write_pretty(&fields).into_bytes());
    let text = String::from_utf8(text).unwrap_or_else(|e| panic!("{e}"));
    let shown = ArrayMetadata::parse_v3(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(
        (&shown.shape, &shown.chunks, &shown.dtype),
        (&meta.shape, &meta.chunks, &meta.dtype),
        "{text}"
    );
    assert_eq!(shown.fill, meta.fill, "{text}");
    assert!(
        shown.shards.is_empty() && shown.stated_filters().eq(meta.object_codec()),
        "{text}"
    );
    let written = json::parse_object(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(json::Value::Object((*written).clone()), fields, "{text}");
    assert_eq!(shown_array(&written, &shown), *written, "{text}");
    assert_eq!(differs_v3(&stored, &meta, &written, &shown), None, "{text}");
    let merged = json::write(&json::Value::Object(merged_v3(
        &stored, &written, &meta, &shown,
    )));
    let merged =
        ArrayMetadata::parse_v3(merged.as_bytes()).unwrap_or_else(|e| panic!("{e}: {merged}"));
    assert!(
        merged.encodes_like(&meta) && merged.shape == meta.shape && merged.fill == meta.fill,
        "{text}"
    );
    meta.description();
    let Some(grid) = grid(&meta) else { return };
    pipeline(&meta, &grid);
    if let Ok(Some(shards)) = Shards::new(&meta) {
        check_shards(&grid, &shards);
    }
}

/// Checks that the document of a group stays valid if consolidated metadata is removed and added.
fn group3(document: &[u8]) {
    let node = node_type(document).ok();
    if check_group_v3(document).is_err() {
        return;
    }
    let shown = without_consolidated(document).unwrap_or_else(|e| panic!("{e}"));
    let with = json::with_member(&shown, "consolidated_metadata", Some(b"{}"))
        .unwrap_or_else(|e| panic!("{e}"));
    for text in [&shown, &with] {
        let shown = text.escape_ascii();
        assert!(
            node_type(text).ok() == node && check_group_v3(text).is_ok(),
            "{shown}"
        );
        assert_eq!(
            member(text, "attributes").ok(),
            member(document, "attributes").ok(),
            "{shown}"
        );
    }
}

/// Checks that chunks are members of the shards that hold them.
fn check_shards(grid: &Grid, shards: &Shards) {
    let count = grid.chunk_count();
    let ids = [0, count / 2, count.saturating_sub(1)]
        .into_iter()
        .filter(|&id| id < count);
    for id in ids {
        let indices = grid.indices(ChunkId(id));
        for level in 0..shards.levels() {
            // shards that differ in shape have different indexes
            let codec = shards
                .index_codec(level, &indices)
                .unwrap_or_else(|e| panic!("{e}"));
            assert!(shards.slot(level, &indices) < codec.entries());
        }
        let object = shards.shard(0, &indices).number;
        assert!(object < shards.objects().chunk_count());
        let mut members = shards
            .members(object, grid)
            .map(|member| member.0)
            .take(1000)
            .peekable();
        assert!(members.peek().is_some_and(|first| *first <= id));
        assert!(members.is_sorted());
    }
}

/// Decodes any bytes as the index of a shard. Checks that each entry lies in the value and outside
/// the index, or is an error. The first byte chooses the location and the codecs of the index, and
/// the second the number of entries. The other bytes are the value.
pub fn shard_index(data: &[u8]) {
    let [how, entries, value @ ..] = data else {
        return;
    };
    let how = *how;
    let entries = usize::from(*entries);
    let config =
        |text: &str| CodecConfig::parse(&json::parse(text.as_bytes()).unwrap_or_default()).ok();
    let turned = format!(r#"{{"id":"transpose","shape":[{entries},2],"order":[1,0]}}"#);
    let codecs = [
        (1, turned.as_str()),
        (2, r#"{"id":"shuffle","elementsize":8}"#),
        (4, r#"{"id":"crc32c"}"#),
    ];
    let codecs = codecs
        .into_iter()
        .filter(|(bit, _)| how & bit != 0)
        .filter_map(|(_, text)| config(text));
    let level = ShardLevel {
        shape: Vec::new(),
        edges: None,
        axes: Vec::new(),
        index_codecs: codecs.collect(),
        is_index_big_endian: how & 8 != 0,
        is_index_at_start: how & 16 != 0,
        around: Vec::new(),
    };
    let Ok(codec) = IndexCodec::new(&level, entries) else {
        return;
    };
    let size = value.len() as u64;
    let Ok(place) = codec.place(size) else { return };
    assert!(
        place.start <= place.end
            && place.end <= size
            && place.end - place.start == codec.stored_size()
    );
    let mut encoded = value[place.start as usize..place.end as usize].to_vec();
    // set the right checksum, which a fuzzer would not find
    if how & 4 != 0
        && how & 32 != 0
        && let Some((bytes, sum)) = encoded.split_last_chunk_mut::<4>()
    {
        *sum = crc32c::crc32c(bytes).to_le_bytes();
    }
    let Ok(index) = codec.decode(&encoded, size) else {
        return;
    };
    for slot in 0..entries {
        if let Ok(Some(entry)) = index.get(slot) {
            assert!(
                entry.start < entry.end && entry.end <= size,
                "{entry:?} of {size}"
            );
            assert!(
                entry.end <= place.start || entry.start >= place.end,
                "{entry:?} overlaps {place:?}"
            );
        }
    }
    assert!(index.get(entries).is_err());
}

/// Maximum number of entries in a shard that is rebuilt.
const MAX_ENTRIES: u8 = 40;

/// The stored form of a shard's index.
#[derive(Clone, Copy)]
struct IndexForm {
    has_checksum: bool,
    is_big_endian: bool,
    is_at_start: bool,
}

/// The meaning of an entry of an index.
#[derive(Clone, Debug, PartialEq)]
enum Found {
    Nothing,
    Damage,
    Chunk(Range<u64>),
}

impl IndexForm {
    fn size(self, entries: usize) -> u64 {
        16 * entries as u64 + if self.has_checksum { 4 } else { 0 }
    }

    fn encode(self, entries: &[(u64, u64)]) -> Vec<u8> {
        let number = |n: u64| {
            if self.is_big_endian {
                n.to_be_bytes()
            } else {
                n.to_le_bytes()
            }
        };
        let mut bytes: Vec<u8> = entries
            .iter()
            .flat_map(|(at, len)| [number(*at), number(*len)])
            .flatten()
            .collect();
        if self.has_checksum {
            bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        }
        bytes
    }

    /// Reads the index of a shard of `size` bytes as the specification defines it, without the code
    /// under test.
    fn read(self, index: &[u8], size: u64) -> Vec<Found> {
        let numbers = index
            .strip_suffix(&index[index.len() / 16 * 16..])
            .unwrap_or_default();
        if self.has_checksum {
            assert_eq!(
                index[numbers.len()..],
                crc32c::crc32c(numbers).to_le_bytes()
            );
        }
        let capacity = if self.is_at_start {
            index.len() as u64..size
        } else {
            0..size - index.len() as u64
        };
        let number = |bytes: &[u8]| {
            let bytes = bytes.try_into().unwrap_or_default();
            if self.is_big_endian {
                u64::from_be_bytes(bytes)
            } else {
                u64::from_le_bytes(bytes)
            }
        };
        let found = |entry: &[u8]| match (number(&entry[..8]), number(&entry[8..])) {
            (u64::MAX, u64::MAX) => Found::Nothing,
            (u64::MAX, _) | (_, u64::MAX) | (_, 0) => Found::Damage,
            (at, len) => match at.checked_add(len) {
                Some(end) if at >= capacity.start && end <= capacity.end => Found::Chunk(at..end),
                _ => Found::Damage,
            },
        };
        numbers.chunks_exact(16).map(found).collect()
    }
}

/// A source of numbers: the bytes of an input, then zeros.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    /// Returns a number below 254, one of the largest 256 numbers, or any number.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::from_le_bytes([0; 8].map(|_: u8| self.byte())),
            254 => u64::MAX - u64::from(self.byte()),
            n => u64::from(n),
        }
    }
}

/// Rebuilds a shard with any index after any changes. Checks that the new index lists exactly the
/// new chunks and the kept ones.
pub fn rebuild(data: &[u8]) {
    let mut input = Numbers(data);
    let how = input.byte();
    let entries = usize::from(input.byte() % MAX_ENTRIES) + 1;
    let form = IndexForm {
        has_checksum: how & 1 != 0,
        is_big_endian: how & 2 != 0,
        is_at_start: how & 4 != 0,
    };
    let crc32c =
        CodecConfig::parse(&json::json!({"id": "crc32c"})).unwrap_or_else(|e| panic!("{e}"));
    let level = ShardLevel {
        shape: Vec::new(),
        edges: None,
        axes: Vec::new(),
        index_codecs: if form.has_checksum {
            vec![crc32c]
        } else {
            Vec::new()
        },
        is_index_big_endian: form.is_big_endian,
        is_index_at_start: form.is_at_start,
        around: Vec::new(),
    };
    let codec = IndexCodec::new(&level, entries).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(codec.stored_size(), form.size(entries));
    let size = codec.stored_size().saturating_add(input.number());
    let start = if form.is_at_start {
        codec.stored_size()
    } else {
        0
    };
    let entry = |_| match input.byte() % 4 {
        0 => (u64::MAX, u64::MAX),
        1 => (input.number(), input.number()),
        _ => (
            start.saturating_add(input.number()),
            u64::from(input.byte() % 16),
        ),
    };
    let numbers: Vec<(u64, u64)> = (0..entries).map(entry).collect();
    let encoded = form.encode(&numbers);
    let old = (how & 8 != 0).then(|| {
        codec
            .decode(&encoded, size)
            .unwrap_or_else(|e| panic!("{e}"))
    });
    let mut changes = BTreeMap::new();
    for _ in 0..usize::from(input.byte()) % (entries + 1) {
        let slot = usize::from(input.byte()) % entries;
        let change = if input.byte() % 3 == 0 {
            EntryChange::Erase
        } else {
            EntryChange::Put(input.number().max(1))
        };
        changes.insert(slot, change);
    }
    let before = if old.is_some() {
        form.read(&encoded, size)
    } else {
        vec![Found::Nothing; entries]
    };
    check_rebuilt(form, &codec, old.as_ref(), &before, &changes, size);
}

/// Checks the pieces of a rebuilt shard. `before` holds the entries of the former index, and `size`
/// is the size of the former shard in bytes.
fn check_rebuilt(
    form: IndexForm,
    codec: &IndexCodec,
    old: Option<&Index>,
    before: &[Found],
    changes: &BTreeMap<usize, EntryChange>,
    size: u64,
) {
    let is_left = |slot: &usize| match changes.get(slot) {
        Some(change) => *change != EntryChange::Erase,
        None => before[*slot] != Found::Nothing,
    };
    // only new chunks of impossible sizes are refused
    let put = |change: &EntryChange| {
        if let EntryChange::Put(len) = change {
            u128::from(*len)
        } else {
            0
        }
    };
    let Ok(pieces) = codec.rebuild(old, changes) else {
        let most = u128::from(size)
            + changes.values().map(put).sum::<u128>()
            + u128::from(codec.stored_size());
        assert!(most > i64::MAX as u128, "{changes:?}");
        return;
    };
    let Some(pieces) = pieces else {
        return assert!(!(0..before.len()).any(|slot| is_left(&slot)));
    };
    assert!(
        (0..before.len()).any(|slot| is_left(&slot)),
        "an empty shard is stored"
    );
    // the pieces and their ranges in the new shard
    let mut end = 0u64;
    let mut placed = Vec::new();
    let mut indexes = Vec::new();
    for piece in &pieces {
        let len = match piece {
            ShardPiece::Old(range) => range.end - range.start,
            ShardPiece::New(slot) => put(&changes[slot]) as u64,
            ShardPiece::Index(index) => index.len() as u64,
        };
        let at = end;
        end = at
            .checked_add(len)
            .unwrap_or_else(|| panic!("longer than 64 bits: {pieces:?}"));
        placed.push((at..end, piece));
        if let ShardPiece::Index(index) = piece {
            indexes.push((at, index));
        }
    }
    let [(at, index)] = indexes[..] else {
        panic!("{} indexes", indexes.len())
    };
    assert_eq!(
        at,
        if form.is_at_start {
            0
        } else {
            end - index.len() as u64
        }
    );
    for (slot, found) in form.read(index, end).into_iter().enumerate() {
        match (changes.get(&slot), &before[slot], found) {
            (Some(EntryChange::Erase), _, found) | (None, Found::Nothing, found) => {
                assert_eq!(found, Found::Nothing)
            }
            (None, Found::Damage, found) => assert_eq!(found, Found::Damage),
            (Some(EntryChange::Put(_)), _, Found::Chunk(range)) => {
                assert!(
                    placed.contains(&(range.clone(), &ShardPiece::New(slot))),
                    "{slot}: {range:?}"
                );
            }
            (None, Found::Chunk(old), Found::Chunk(range)) => {
                assert_eq!(former(&placed, &range), Some(old.clone()))
            }
            case => panic!("entry {slot}: {case:?}"),
        }
    }
}

/// Returns the range of the former shard that was copied to `range` of the new one, or `None` if
/// `range` holds other bytes.
fn former(placed: &[(Range<u64>, &ShardPiece)], range: &Range<u64>) -> Option<Range<u64>> {
    let (place, piece) = placed
        .iter()
        .find(|(place, _)| place.start <= range.start && range.end <= place.end)?;
    let ShardPiece::Old(old) = piece else {
        return None;
    };
    let at = old.start + (range.start - place.start);
    Some(at..at + (range.end - range.start))
}

/// Decodes any bytes with any codec. Checks that the decoder stays within its buffer. The input is
/// a codec's configuration, a line feed, and the encoded bytes.
pub fn codecs(data: &[u8]) {
    let Some(end) = data.iter().position(|&b| b == b'\n') else {
        return;
    };
    let line = &data[..end];
    let stored = &data[end + 1..];
    let Some(config) = json::parse(line)
        .ok()
        .and_then(|v| CodecConfig::parse(&v).ok())
    else {
        return;
    };
    for (itemsize, capacity) in [(1, 0), (1, 16), (4, 256), (8, 4096)] {
        let Ok(codec) = build(&config, itemsize) else {
            return;
        };
        let mut out = vec![0; capacity];
        if let Ok(n) = codec.decode(stored, &mut out) {
            assert!(n <= capacity, "{n} bytes where {capacity} fit");
        }
    }
}

/// Reads any bytes as a file of an Icechunk repository, of the kind that the header states. Each
/// name and reference must be found or be an error, within the memory for documents.
pub fn icechunk(file: &[u8]) {
    let _ = IcechunkStore::check(file);
}

/// Reads any bytes as a document of references. What is accepted is JSON, and each key has about
/// one byte of text.
pub fn references(document: &[u8]) {
    let Ok(count) = ReferenceStore::check(document) else {
        return;
    };
    if !document.windows(5).any(|name| name == b"\"gen\"") && document.is_ascii() {
        assert!(
            count <= document.len(),
            "{count} keys in {} bytes",
            document.len()
        );
    }
}

/// Maximum number of items that are read of an array of HDF5 or TIFF.
const FEW: u64 = 4096;

/// Reads any bytes as a file of another program that becomes arrays. What is accepted has no more
/// items than the file has bytes for them, and each item can be read. HDF5 and TIFF may be
/// compressed and damaged within: there the first items are read, or refused.
pub fn ingest(bytes: &[u8]) {
    let file = unnamed_file(&std::env::temp_dir()).unwrap_or_else(|e| panic!("{e}"));
    file.write_all_at(bytes, 0)
        .unwrap_or_else(|e| panic!("{e}"));
    let incoming = match Incoming::open(&file) {
        Ok(incoming) => incoming,
        Err(e) => return assert_eq!(e.message().lines().count(), 1, "{e}"),
    };
    let mut total = 0;
    for number in 0..incoming.count() {
        let array = incoming.array(number).unwrap_or_else(|e| panic!("{e}"));
        let size = DType::parse(&array.dtype)
            .unwrap_or_else(|e| panic!("{e}"))
            .size();
        let start = vec![0; array.shape.len()];
        let mut counts = array.shape.clone();
        let is_place = matches!(array.items, ItemSource::Place(_));
        if !is_place {
            let mut left = FEW.min(bytes.len() as u64);
            for count in counts.iter_mut().rev() {
                *count = (*count).min(left);
                left = (left / (*count).max(1)).max(1);
            }
        }
        let items: u64 = if counts.contains(&0) {
            0
        } else {
            counts.iter().product()
        };
        if is_place {
            total += items * size as u64;
            assert!(total <= bytes.len() as u64, "{total} bytes of items");
        }
        // a mount refuses what takes much memory before it reads it
        let is_tiff = matches!(array.items, ItemSource::Tiff(_));
        let takes_much = is_tiff && array.items.memory(SMALL) > LARGE;
        if items as usize * size > SMALL && !is_place || takes_much {
            continue;
        }
        let mut out = vec![0; items as usize * size];
        let scratch = &mut Vec::new();
        let read = array
            .items
            .read_box(&file, &start, &counts, &counts, &mut out, scratch);
        if let Err(e) = read {
            assert!(!is_place && e.message().lines().count() == 1, "{e}");
        }
    }
}
