//! Runs the model with arrays of v2, with shards of v3, and with chunks of different lengths.

use super::*;

/// A layout of chunks in shards.
#[derive(Clone, Debug)]
struct ShardPlan {
    /// For each level, the innermost first, the number of inner chunks along each dimension.
    times: Vec<Vec<u64>>,
    /// Along each dimension, lengths of the outermost shards in entries, used in turn; empty if all
    /// have the shape of `times`.
    outermost: Vec<Vec<u64>>,
    /// Codecs of a chunk.
    codecs: &'static str,
    /// Codecs around the outermost shard.
    around: &'static str,
    /// 1 if the innermost index is at the start; the levels alternate.
    at_start: usize,
}

impl ShardPlan {
    /// Returns the grid of the outermost shards of an array of shape `shape`, whose entries have
    /// the shape `entry`.
    fn grid(&self, entry: &[u64], shape: &[u64]) -> String {
        let Some(times) = self.times.last() else {
            return String::new();
        };
        if self.outermost.is_empty() {
            let outer: Vec<u64> = entry
                .iter()
                .zip(times)
                .map(|(len, times)| len * times)
                .collect();
            return format!(r#"{{"name":"regular","configuration":{{"chunk_shape":{outer:?}}}}}"#);
        }
        let lengths = |((entry, numbers), len): ((&u64, &Vec<u64>), &u64)| {
            let count = len.div_ceil(*entry) as usize;
            numbers
                .iter()
                .cycle()
                .map(|n| n * entry)
                .take(count.max(2))
                .collect::<Vec<_>>()
        };
        let edges: Vec<Vec<u64>> = entry
            .iter()
            .zip(&self.outermost)
            .zip(shape)
            .map(lengths)
            .collect();
        format!(
            r#"{{"name":"rectilinear","configuration":{{"kind":"inline","chunk_shapes":{edges:?}}}}}"#
        )
    }
}

impl Model {
    fn new(
        shape: &[u64],
        chunks: &[u64],
        item: u64,
        order: &str,
        codec: &str,
        fill: bool,
        bound: usize,
    ) -> Self {
        let fill_value = if fill && item == 4 {
            "\"AQIDBA==\""
        } else {
            "null"
        };
        let document = format!(
            r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{chunks:?},"dtype":"|V{item}","compressor":{codec},
            "fill_value":{fill_value},"order":"{order}","filters":null}}"#
        );
        Model::of(
            &document,
            ArrayMetadata::parse(document.as_bytes()).unwrap(),
            bound,
        )
    }

    /// Returns a model of a Zarr v3 array in shards.
    fn sharded(
        chunks: &[u64],
        shape: &[u64],
        item: u64,
        shards: &ShardPlan,
        fill: bool,
        bound: usize,
    ) -> Self {
        let fill = if fill && item == 4 {
            vec![1, 2, 3, 4]
        } else {
            vec![0; item as usize]
        };
        let index = r#"{"name":"bytes","configuration":{"endian":"little"}},{"name":"crc32c"}"#;
        let mut codecs = shards.codecs.to_string();
        let mut inner = chunks.to_vec();
        let mut grid = String::new();
        for (level, times) in shards.times.iter().enumerate() {
            let location = if (shards.at_start + level).is_multiple_of(2) {
                "end"
            } else {
                "start"
            };
            let around = if level + 1 == shards.times.len() {
                shards.around
            } else {
                ""
            };
            codecs = format!(
                r#"{{"name":"sharding_indexed","configuration":{{"chunk_shape":{inner:?},"codecs":[{codecs}],
                "index_codecs":[{index}],"index_location":"{location}"}}}}{around}"#
            );
            if level + 1 == shards.times.len() {
                grid = shards.grid(&inner, shape);
            }
            inner = inner
                .iter()
                .zip(times)
                .map(|(len, times)| len * times)
                .collect();
        }
        let document = format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":{shape:?},"data_type":"r{}","fill_value":{fill:?},
            "chunk_grid":{grid},"chunk_key_encoding":{{"name":"default"}},"codecs":[{codecs}]}}"#,
            8 * item
        );
        let metadata = ArrayMetadata::parse_v3(document.as_bytes()).unwrap();
        assert_eq!(metadata.shards.len(), shards.times.len());
        Model::of(&document, metadata, bound)
    }

    /// Returns a model of a Zarr v3 array with chunks of listed lengths. Each dimension has these
    /// lengths, and the fraction of their sum that the array covers.
    fn irregular(
        dimensions: &[(Vec<u64>, f64)],
        item: u64,
        is_transposed: bool,
        codecs: &str,
        fill: bool,
        bound: usize,
    ) -> Self {
        let fill = if fill && item == 4 {
            vec![1, 2, 3, 4]
        } else {
            vec![0; item as usize]
        };
        let all = |lengths: &[u64]| lengths.iter().sum::<u64>();
        let shape: Vec<u64> = dimensions
            .iter()
            .map(|(lengths, part)| 1 + (all(lengths) as f64 * part) as u64)
            .collect();
        let edges: Vec<&Vec<u64>> = dimensions.iter().map(|(lengths, _)| lengths).collect();
        let order: Vec<usize> = (0..shape.len()).rev().collect();
        let transpose = if is_transposed {
            format!(r#"{{"name":"transpose","configuration":{{"order":{order:?}}}}},"#)
        } else {
            String::new()
        };
        let document = format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":{shape:?},"data_type":"r{}","fill_value":{fill:?},
            "chunk_grid":{{"name":"rectilinear","configuration":{{"kind":"inline","chunk_shapes":{edges:?}}}}},
            "chunk_key_encoding":{{"name":"default"}},"codecs":[{transpose}{codecs}]}}"#,
            8 * item
        );
        Model::of(
            &document,
            ArrayMetadata::parse_v3(document.as_bytes()).unwrap(),
            bound,
        )
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn an_array_behaves_like_plain_bytes(
        (shape, chunks) in geometry(), item in prop::sample::select(vec![1u64, 3, 4]), f in any::<bool>(),
        codec in prop::sample::select(vec!["null", r#"{"id":"zlib","level":1}"#, r#"{"id":"blosc"}"#]),
        fill in any::<bool>(), bound in prop::sample::select(vec![0usize, 600, 4 << 20]),
        ops in prop::collection::vec(op(), 1..50),
    ) {
        let order = if f { "F" } else { "C" };
        let mut model = Model::new(&shape, &chunks, item, order, codec, fill, bound);
        model.run(&ops);
    }

    #[test]
    fn an_array_in_shards_behaves_like_plain_bytes(
        (shape, chunks) in geometry(), item in prop::sample::select(vec![1u64, 3, 4]),
        times in prop::collection::vec(prop::collection::vec(1u64..4, 6), 1..=3),
        codecs in prop::sample::select(vec![
            r#"{"name":"bytes"}"#, r#"{"name":"bytes"},{"name":"gzip","configuration":{"level":1}}"#,
            r#"{"name":"bytes"},{"name":"crc32c"}"#,
        ]),
        around in prop::sample::select(vec!["", "", r#",{"name":"gzip","configuration":{"level":1}}"#]),
        at_start in 0usize..2,
        outermost in prop::option::of(prop::collection::vec(prop::collection::vec(1u64..4, 2..4), 6)),
        fill in any::<bool>(), bound in prop::sample::select(vec![0usize, 600, 4 << 20]),
        ops in prop::collection::vec(op(), 1..50),
    ) {
        let times = times.iter().map(|times| times[..shape.len()].to_vec()).collect();
        let outermost = outermost.map_or(Vec::new(), |outermost| outermost[..shape.len()].to_vec());
        let plan = ShardPlan { times, outermost, codecs, around, at_start };
        let mut model = Model::sharded(&chunks, &shape, item, &plan, fill, bound);
        model.run(&ops);
    }

    #[test]
    fn an_array_of_irregular_chunks_behaves_like_plain_bytes(
        dimensions in prop::collection::vec((prop::collection::vec(1u64..6, 1..5), 0.0..1.0f64), 1..4),
        item in prop::sample::select(vec![1u64, 3, 4]), is_transposed in any::<bool>(),
        codecs in prop::sample::select(vec![
            r#"{"name":"bytes"}"#, r#"{"name":"bytes"},{"name":"gzip","configuration":{"level":1}}"#,
            r#"{"name":"bytes"},{"name":"blosc","configuration":{"typesize":1,"clevel":1,"cname":"lz4","shuffle":"noshuffle"}}"#,
        ]),
        fill in any::<bool>(), bound in prop::sample::select(vec![0usize, 600, 4 << 20]),
        ops in prop::collection::vec(op(), 1..50),
    ) {
        let mut model = Model::irregular(&dimensions, item, is_transposed, codecs, fill, bound);
        model.run(&ops);
    }
}
