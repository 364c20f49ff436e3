use super::*;
use crate::metadata::ArrayMetadata;
use zarrfs_base::error::Kind;
use zarrfs_base::json::json;

/// A document that zarr-python 3.1.6 wrote: `create_array(shape=(10, 6), chunks=(2, 3), shards=(4,
/// 6), dtype=">f4", ...)`.
const SHARDED: &str = r#"{"shape":[10,6],"data_type":"float32","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[4,
    6]}},"chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},"fill_value":"NaN",
    "codecs":[{"name":"sharding_indexed","configuration":{"chunk_shape":[2,3],"codecs":[{"name":"bytes",
    "configuration":{"endian":"big"}},{"name":"blosc","configuration":{"typesize":4,"cname":"zstd",
    "clevel":3,"shuffle":"bitshuffle","blocksize":0}}],"index_codecs":[{"name":"bytes",
    "configuration":{"endian":"little"}},{"name":"crc32c"}],"index_location":"end"}}],
    "attributes":{"u":"m"},"dimension_names":["y",null],"zarr_format":3,"node_type":"array",
    "storage_transformers":[]}"#;

/// A document that zarr-python 3.1.6 wrote: a transposition, gzip and a checksum.
const TRANSPOSED: &str = r#"{"shape":[8,12],"data_type":"int16","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[4,
    6]}},"chunk_key_encoding":{"name":"v2","configuration":{"separator":"/"}},"fill_value":-1,
    "codecs":[{"name":"transpose","configuration":{"order":[1,0]}},{"name":"bytes",
    "configuration":{"endian":"little"}},{"name":"gzip","configuration":{"level":5}},{"name":"crc32c"}],
    "attributes":{},"zarr_format":3,"node_type":"array","storage_transformers":[]}"#;

/// A document that zarr-python 3.1.6 wrote: strings.
const STRINGS: &str = r#"{"shape":[5],"data_type":"string","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2]}},
    "chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},"fill_value":"",
    "codecs":[{"name":"vlen-utf8","configuration":{}},{"name":"zstd","configuration":{"level":0,
    "checksum":false}}],"attributes":{},"zarr_format":3,"node_type":"array","storage_transformers":[]}"#;

/// A document that zarr-python 3.1.6 wrote: codecs of numcodecs.
const FILTERED: &str = r#"{"shape":[5],"data_type":"float64","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2]}},
    "chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},"fill_value":0.0,
    "codecs":[{"name":"numcodecs.delta","configuration":{"dtype":"<f8"}},{"name":"bytes",
    "configuration":{"endian":"little"}},{"name":"numcodecs.zlib","configuration":{"level":2}}],
    "attributes":{},"zarr_format":3,"node_type":"array","storage_transformers":[]}"#;

/// A document that zarr-python 3.1.6 wrote: a structured type.
const STRUCTURED: &str = r#"{"shape":[5],"data_type":{"name":"structured","configuration":{"fields":[["a","int32"],["b",
    "float64"]]}},"chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2]}},
    "chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},
    "fill_value":"AAAAAAAAAAAAAAAA","codecs":[{"name":"bytes"},{"name":"zstd","configuration":{"level":0,
    "checksum":false}}],"attributes":{},"zarr_format":3,"node_type":"array","storage_transformers":[]}"#;

/// A document that TensorStore wrote: transpositions outside and inside a shard whose index is at
/// the start.
const TENSORSTORE: &str = r#"{"chunk_grid":{"configuration":{"chunk_shape":[8,8]},"name":"regular"},
    "chunk_key_encoding":{"name":"default"},"codecs":[{"configuration":{"order":[1,0]},"name":"transpose"},
    {"configuration":{"chunk_shape":[4,2],"codecs":[{"configuration":{"order":[1,0]},"name":"transpose"},
    {"configuration":{"endian":"big"},"name":"bytes"},{"configuration":{"checksum":false,"level":1},
    "name":"zstd"}],"index_codecs":[{"configuration":{"endian":"big"},"name":"bytes"},{"name":"crc32c"}],
    "index_location":"start"},"name":"sharding_indexed"}],"data_type":"bfloat16","fill_value":0.0,
    "node_type":"array","shape":[16,8],"zarr_format":3}"#;

fn parsed(document: &str) -> ArrayMetadata {
    ArrayMetadata::parse_v3(document.as_bytes()).unwrap()
}

fn texts(codecs: &[CodecConfig]) -> Vec<String> {
    codecs
        .iter()
        .map(|codec| codec.to_json().to_string())
        .collect()
}

/// Returns the chain `codecs` of an array of `data_type` with outermost chunks of shape `chunks`.
fn chain(codecs: Value, chunks: &[u64], data_type: &str) -> Result<Chain> {
    parse_chain(&codecs, chunks, &data_type.into())
}

fn shard(chunk_shape: Value, codecs: Value) -> Value {
    json!({"name": "sharding_indexed", "configuration": {
        "chunk_shape": chunk_shape, "codecs": codecs, "index_codecs": ["bytes", "crc32c"]}})
}

fn transpose(order: Value) -> Value {
    json!({"name": "transpose", "configuration": {"order": order}})
}

#[test]
fn documents_of_zarr_python_are_read() {
    let m = parsed(SHARDED);
    assert_eq!(
        (m.shape.as_slice(), m.chunks.as_slice(), m.dtype_json),
        (&[10, 6][..], &[2, 3][..], json!(">f4"))
    );
    assert_eq!(m.fill, Some(vec![0x7f, 0xc0]));
    let blosc =
        r#"{"id":"blosc","typesize":4,"cname":"zstd","clevel":3,"shuffle":2,"blocksize":0}"#;
    assert_eq!(texts(&m.filters), [blosc]);
    let level = &m.shards[0];
    assert_eq!(
        (
            level.shape.as_slice(),
            level.axes.as_slice(),
            m.shards.len()
        ),
        (&[4, 6][..], &[0, 1][..], 1)
    );
    assert_eq!(texts(&level.index_codecs), [r#"{"id":"crc32c"}"#]);
    assert!(!level.is_index_at_start && !level.is_index_big_endian && level.around.is_empty());

    let m = parsed(TRANSPOSED);
    let filters = [
        r#"{"id":"transpose","shape":[4,6],"order":[1,0]}"#,
        r#"{"id":"gzip","level":5}"#,
        r#"{"id":"crc32c"}"#,
    ];
    assert_eq!(texts(&m.filters), filters);
    assert_eq!(
        (m.has_key_prefix(), m.fill),
        (false, Some(vec![0xff, 0xff]))
    );

    let m = parsed(STRINGS);
    assert_eq!(
        texts(&m.filters),
        [
            r#"{"id":"vlen-utf8"}"#,
            r#"{"id":"zstd","level":0,"checksum":false}"#
        ]
    );
    assert_eq!((m.has_objects(), m.fill), (true, None));

    let delta = r#"{"id":"delta","dtype":"<f8","astype":"<f8"}"#;
    assert_eq!(
        texts(&parsed(FILTERED).filters),
        [delta, r#"{"id":"zlib","level":2}"#]
    );
    let m = parsed(STRUCTURED);
    assert_eq!(
        (m.dtype.size(), m.dtype_json),
        (12, json!([["a", "<i4"], ["b", "<f8"]]))
    );
}

#[test]
fn transpositions_before_a_shard_turn_its_index_and_its_chunks() {
    let m = parsed(TENSORSTORE);
    assert_eq!(
        (m.chunks.as_slice(), &m.dtype_json, m.is_big_endian()),
        (&[2, 4][..], &json!("|V2"), true)
    );
    let outer = r#"{"id":"transpose","shape":[2,4],"order":[1,0]}"#;
    let inner = r#"{"id":"transpose","shape":[4,2],"order":[1,0]}"#;
    assert_eq!(
        texts(&m.filters),
        [outer, inner, r#"{"id":"zstd","checksum":false,"level":1}"#]
    );
    let level = &m.shards[0];
    assert_eq!(
        (level.shape.as_slice(), level.axes.as_slice()),
        (&[8, 8][..], &[1, 0][..])
    );
    assert!(level.is_index_at_start && level.is_index_big_endian);

    // axes of nested shards are those of the array
    let nested = shard(
        json!([4, 6, 8]),
        json!([
            transpose(json!([1, 0, 2])),
            shard(json!([3, 4, 4]), json!(["bytes"]))
        ]),
    );
    let c = chain(
        json!([transpose(json!([2, 0, 1])), nested]),
        &[6, 8, 4],
        "int8",
    )
    .unwrap();
    let shapes: Vec<_> = c
        .shards
        .iter()
        .map(|level| (level.shape.as_slice(), level.axes.as_slice()))
        .collect();
    assert_eq!(
        shapes,
        [
            (&[6, 8, 4][..], &[2, 0, 1][..]),
            (&[6, 8, 4][..], &[0, 2, 1][..])
        ]
    );
    assert_eq!(c.chunks, [3, 4, 4]);
    assert_eq!(
        texts(&c.filters),
        [r#"{"id":"transpose","shape":[3,4,4],"order":[0,2,1]}"#]
    );

    let c = chain(
        json!([
            transpose(json!("F")),
            shard(json!([1, 2]), json!(["vlen-utf8", "zstd"]))
        ]),
        &[4, 3],
        "string",
    );
    let turned = r#"{"id":"vlen_transpose","shape":[2,1],"order":[1,0]}"#;
    assert_eq!(
        texts(&c.unwrap().filters),
        [r#"{"id":"vlen-utf8"}"#, turned, r#"{"id":"zstd"}"#]
    );
}

#[test]
fn filters_of_single_items_move_into_the_shard_and_codecs_of_bytes_stay_around() {
    let offset = json!({"name": "scale_offset", "configuration": {"offset": 5, "scale": 1}});
    let cast = json!({"name": "cast_value", "configuration": {"data_type": "int16", "rounding": "nearest-even"}});
    let codecs = json!([
        offset,
        transpose(json!([1, 0])),
        cast,
        shard(json!([2, 4]), json!(["bytes", "zstd"])),
        "gzip"
    ]);
    let c = chain(codecs, &[4, 4], "int32").unwrap();
    let filters = [
        r#"{"id":"scale_offset","offset":5,"scale":1,"dtype":"<i4"}"#,
        r#"{"id":"cast_value","rounding":"nearest-even","from":"<i4","to":"<i2"}"#,
        r#"{"id":"transpose","shape":[4,2],"order":[1,0]}"#,
        r#"{"id":"zstd"}"#,
    ];
    assert_eq!(texts(&c.filters), filters);
    assert_eq!(texts(&c.shards[0].around), [r#"{"id":"gzip"}"#]);
}

#[test]
fn an_index_may_be_transposed_and_have_several_checksums() {
    let with = |index: Value| {
        let mut codec = shard(json!([2, 2]), json!(["bytes"]));
        codec["configuration"]["index_codecs"] = index;
        chain(json!([codec]), &[6, 4], "int8")
    };
    let big = json!({"name": "bytes", "configuration": {"endian": "big"}});
    let c = with(json!([
        transpose(json!([2, 0, 1])),
        big,
        "numcodecs.crc32",
        "crc32c"
    ]))
    .unwrap();
    let turned = r#"{"id":"transpose","shape":[3,2,2],"order":[2,0,1]}"#;
    assert_eq!(
        texts(&c.shards[0].index_codecs),
        [turned, r#"{"id":"crc32"}"#, r#"{"id":"crc32c"}"#]
    );
    assert!(c.shards[0].is_index_big_endian);
    for (index, kind) in [
        (json!([]), Kind::Damaged),
        (json!(["crc32c"]), Kind::Damaged),
        (json!(["bytes", "gzip"]), Kind::Damaged),
        (json!(["bytes", "x"]), Kind::Unsupported),
        (json!([transpose(json!([0, 1])), "bytes"]), Kind::Damaged),
        (json!(["packbits"]), Kind::Unsupported),
        (json!("bytes"), Kind::Damaged),
    ] {
        assert_eq!(with(index.clone()).unwrap_err().kind(), kind, "{index}");
    }
}

#[test]
fn hostile_shards_are_refused() {
    let plain = || json!(["bytes"]);
    let mut nested = shard(json!([1]), plain());
    let middle = json!({"name": "sharding_indexed", "configuration": {
        "chunk_shape": [2], "codecs": ["bytes"], "index_codecs": ["bytes"], "index_location": "middle"}});
    for chunk in [2, 4, 8] {
        nested = shard(json!([chunk]), json!([nested]));
    }
    assert_eq!(
        chain(json!([nested]), &[16], "int8").unwrap().shards.len(),
        4
    );
    let reshape = json!({"name": "reshape", "configuration": {"shape": [[0, 1]]}});
    let delta = json!({"name": "numcodecs.delta", "configuration": {"dtype": "|i1"}});
    for (codecs, chunks, kind) in [
        (json!([shard(json!([3]), plain())]), &[4][..], Kind::Damaged),
        (json!([shard(json!([4]), plain())]), &[2], Kind::Damaged),
        (json!([shard(json!([2, 2]), plain())]), &[4], Kind::Damaged),
        (json!([shard(json!([0]), plain())]), &[4], Kind::Damaged),
        (json!([shard(json!([-2]), plain())]), &[4], Kind::Damaged),
        (json!([shard(json!("4"), plain())]), &[4], Kind::Damaged),
        (json!([shard(json!([2]), json!(null))]), &[4], Kind::Damaged),
        (json!([middle]), &[4], Kind::Damaged),
        (
            json!([shard(json!([1]), plain())]),
            &[(1 << 22) + 1],
            Kind::Unsupported,
        ),
        (
            json!([shard(json!([1, 1]), plain())]),
            &[1 << 40, 1 << 40],
            Kind::Damaged,
        ),
        (
            json!([shard(json!([16]), json!([nested]))]),
            &[32],
            Kind::Unsupported,
        ),
        (
            json!([delta, shard(json!([2, 2]), plain())]),
            &[4, 4],
            Kind::Unsupported,
        ),
        (
            json!([reshape, shard(json!([2]), plain())]),
            &[4, 4],
            Kind::Unsupported,
        ),
        (
            json!([shard(json!([2]), plain()), shard(json!([2]), plain())]),
            &[4],
            Kind::Damaged,
        ),
    ] {
        assert_eq!(
            chain(codecs.clone(), chunks, "int8").unwrap_err().kind(),
            kind,
            "{codecs}"
        );
    }
    let largest = chain(json!([shard(json!([1]), plain())]), &[1 << 22], "int8").unwrap();
    assert_eq!(largest.chunks, [1]);
}

#[test]
fn unknown_parameters_are_unsupported() {
    for codec in [
        json!({"name": "numcodecs.delta", "configuration": {"dtype": "<i4", "x": 1}}),
        json!({"name": "numcodecs.delta", "configuration": {"dtype": ">i4"}}),
        json!({"name": "zarrs.squeeze", "configuration": {"x": 1}}),
    ] {
        let e = chain(json!([codec, "bytes"]), &[4], "int32").unwrap_err();
        assert_eq!(e.kind(), Kind::Unsupported, "{codec}: {e}");
    }
    for name in [
        "gzip",
        "zstd",
        "blosc",
        "crc32c",
        "lz4",
        "numcodecs.bz2",
        "numcodecs.lzma",
        "numcodecs.fletcher32",
    ] {
        let codec = json!({"name": name, "configuration": {"x": 1}});
        assert_eq!(
            chain(json!(["bytes", codec]), &[4], "int32")
                .unwrap_err()
                .kind(),
            Kind::Unsupported,
            "{name}"
        );
    }
    let repeated =
        json!(["bytes", {"name": "numcodecs.bz2", "configuration": {"id": "bz2", "level": 2}}]);
    assert_eq!(
        texts(&chain(repeated, &[4], "int32").unwrap().filters),
        [r#"{"id":"bz2","level":2}"#]
    );
    let words = json!([{"name": "numcodecs.quantize", "configuration": {"digits": 3}}, "bytes"]);
    assert_eq!(
        chain(words, &[4], "bfloat16").unwrap_err().kind(),
        Kind::Unsupported
    );
}

#[test]
fn zfp_gets_the_shape_and_type_of_the_codecs_before() {
    let zfp = json!({"name": "zfp", "configuration": {"mode": "reversible"}});
    let c = chain(json!([transpose(json!([1, 0])), zfp]), &[2, 3], "int32").unwrap();
    assert_eq!(
        texts(&c.filters)[1],
        r#"{"id":"zfp","mode":"reversible","dtype":"<i4","shape":[3,2]}"#
    );
    let squeeze = json!({"name": "zarrs.squeeze"});
    let zfpy = json!({"name": "numcodecs.zfpy", "configuration": {"mode": 4}});
    let c = chain(json!([squeeze, zfpy, "crc32c"]), &[2, 1, 3], "float64").unwrap();
    assert_eq!(
        texts(&c.filters)[0],
        r#"{"id":"zfpy","mode":4,"dtype":"<f8","shape":[2,3]}"#
    );
    for name in ["dtype", "shape", "write_header"] {
        let stated = json!({"name": "zfp", "configuration": {"mode": "reversible", name: 1}});
        let e = chain(json!([stated]), &[4], "int32").unwrap_err();
        assert_eq!(e.kind(), Kind::Unsupported, "{e}");
    }
}

#[test]
fn codecs_get_the_shapes_and_types_of_those_before() {
    let reshape = json!({"name": "reshape", "configuration": {"shape": [-1, [2]]}});
    let c = chain(
        json!([reshape, transpose(json!([1, 0])), "bytes"]),
        &[2, 3, 4],
        "int8",
    )
    .unwrap();
    assert_eq!(
        texts(&c.filters),
        [r#"{"id":"transpose","shape":[6,4],"order":[1,0]}"#]
    );
    let c = chain(
        json!(["zarrs.squeeze", transpose(json!([1, 0])), "bytes"]),
        &[2, 1, 4],
        "int8",
    )
    .unwrap();
    assert_eq!(
        texts(&c.filters),
        [r#"{"id":"transpose","shape":[2,4],"order":[1,0]}"#]
    );
    for shape in [
        json!([5]),
        json!([-1, -1]),
        json!([-1, 5]),
        json!([0]),
        json!([[3]]),
        json!(24),
        json!(null),
    ] {
        let codec = json!({"name": "reshape", "configuration": {"shape": shape}});
        assert_eq!(
            chain(json!([codec, "bytes"]), &[2, 3, 4], "int8")
                .unwrap_err()
                .kind(),
            Kind::Damaged,
            "{shape}"
        );
    }
    let bitround = json!({"name": "bitround", "configuration": {"keepbits": 3}});
    let big = json!({"name": "bytes", "configuration": {"endian": "big"}});
    for (data_type, dtype) in [
        ("float32", ">f4"),
        ("bfloat16", ">bfloat16"),
        ("int16", ">i2"),
        ("complex64", ">c8"),
    ] {
        let c = chain(json!([bitround, big]), &[4], data_type).unwrap();
        assert_eq!(
            texts(&c.filters),
            [format!(
                r#"{{"id":"bitround","keepbits":3,"dtype":"{dtype}"}}"#
            )]
        );
    }
    let packed = chain(
        json!([{"name": "packbits", "configuration": {"padding_encoding": "last_byte"}}]),
        &[4],
        "bool",
    );
    assert_eq!(
        texts(&packed.unwrap().filters),
        [r#"{"id":"packbits_v3","padding_encoding":"last_byte","dtype":"|b1"}"#]
    );
}
