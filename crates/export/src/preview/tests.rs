use super::super::testing;
use super::*;
use crate::Format;
use crate::described::{DescribedAxis, ImageChannel};
use proptest::prelude::*;
use zarrfs_base::key::Key;

/// Returns the size and the pixels of an image.
fn decoded(file: &[u8]) -> ([u32; 2], Vec<u8>) {
    let mut reader = png::Decoder::new(std::io::Cursor::new(file))
        .read_info()
        .unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    ([info.width, info.height], pixels)
}

/// Returns the size and the pixels of the image of an array.
fn image(map: &testing::MapHierarchy, path: &str) -> ([u32; 2], Vec<u8>) {
    let array = map.array(path);
    let described = crate::describe(map, &array).unwrap();
    let file = Format::Preview.image(map, &described).unwrap();
    let stated = Format::Preview.file(&described).unwrap().size();
    assert_eq!(file.size(), stated);
    let PartContent::Bytes(bytes) = &file.parts()[0].content else {
        panic!("the image is no bytes");
    };
    decoded(bytes)
}

proptest! {
    #[test]
    fn the_size_follows_from_width_and_height(width in 1u32..=512, height in 1u32..=512, byte: u8) {
        let pixels = vec![byte; (width * height) as usize * PIXEL];
        let file = encode(&pixels, width, height).unwrap();
        prop_assert_eq!(file.len() as u64, png_size(width, height));
        prop_assert_eq!(decoded(&file), ([width, height], pixels));
    }
}

#[test]
fn the_size_is_right_where_a_block_ends_with_the_rows() {
    // rows of 5 bytes, 13107 of which fill a block of 65535 bytes; and one of 65533 bytes
    for (width, height) in [
        (1, 13106),
        (1, 13107),
        (1, 13108),
        (1, 26214),
        (16383, 1),
        (16384, 1),
    ] {
        let pixels = vec![7; (width * height) as usize * PIXEL];
        let file = encode(&pixels, width, height).unwrap();
        assert_eq!(
            file.len() as u64,
            png_size(width, height),
            "{width} {height}"
        );
    }
}

#[test]
fn long_sides_are_scaled_and_short_ones_stay() {
    for ([rows, columns], expected) in [
        ([1, 1], [1, 1]),
        ([6, 10], [6, 10]),
        ([512, 512], [512, 512]),
        ([513, 512], [512, 511]),
        ([1000, 2000], [256, 512]),
        ([1_000_000, 20], [512, 20]),
        ([200, 1_000_000], [64, 512]),
        ([1, 1 << 40], [1, 512]),
    ] {
        let frame = PreviewFrame::of(&testing::plain("|u1", &[rows, columns])).unwrap();
        assert_eq!([frame.height, frame.width], expected, "{rows} {columns}");
    }
}

#[test]
fn numbers_and_times_of_two_dimensions_have_an_image() {
    let fits = |dtype, shape: &[u64]| Format::Preview.fits(&testing::plain(dtype, shape).metadata);
    for dtype in [
        "|b1", "|u1", "|i1", "<i2", ">u4", "<i8", ">u8", "<f2", ">f4", "<f8", "<M8[s]", "<m8[D]",
    ] {
        assert!(fits(dtype, &[3, 4]), "{dtype}");
    }
    for dtype in ["<c8", "<c16", "|S3", "<U2", "|V4"] {
        assert!(!fits(dtype, &[3, 4]), "{dtype}");
    }
    for shape in [&[] as &[u64], &[7], &[0, 4], &[4, 0], &[4, 6, 0]] {
        assert!(!fits("<f4", shape), "{shape:?}");
    }
    assert!(fits("<f4", &[1, 1]) && fits("<f4", &[1; 9]));
}

#[test]
fn hostile_descriptions_have_a_bounded_size() {
    for array in testing::hostile() {
        let file = Format::Preview.file(&array).unwrap();
        assert!(file.size() <= png_size(512, 512) && file.size() > 0);
    }
}

/// Chunks of one item: 3 x 4 are fewer than 64.
#[test]
fn values_have_colors_and_missing_ones_have_none() {
    let map = testing::hierarchy(&[("a", "\">i2\"", &[3, 4], r#"{"_FillValue": -1}"#)]);
    let values = [0i16, 100, -1, 50, 0, 0, 0, 0, 100, 100, 100, 100];
    for (number, value) in values.iter().enumerate() {
        map.insert(
            &format!("a/{}.{}", number / 4, number % 4),
            value.to_be_bytes(),
        );
    }
    let (size, pixels) = image(&map, "a");
    assert_eq!(size, [4, 3]);
    // matplotlib's viridis, whose parts are not rounded alike everywhere
    let expected = [
        68, 1, 84, 255, 253, 231, 37, 255, 0, 0, 0, 0, 33, 145, 140, 255,
    ];
    let is_near = |(shown, expected): (&u8, &u8)| shown.abs_diff(*expected) <= 1;
    assert!(pixels.iter().zip(&expected).all(is_near), "{pixels:?}");
}

#[test]
fn a_map_has_north_at_the_top() {
    let map = testing::hierarchy(&[
        (
            "t",
            "\"|u1\"",
            &[2, 1],
            r#"{"_ARRAY_DIMENSIONS":["lat","lon"]}"#,
        ),
        (
            "lat",
            "\"<f4\"",
            &[2],
            r#"{"_ARRAY_DIMENSIONS":["lat"],"units":"degrees_north"}"#,
        ),
        (
            "lon",
            "\"<f4\"",
            &[1],
            r#"{"_ARRAY_DIMENSIONS":["lon"],"units":"degrees_east"}"#,
        ),
    ]);
    for (south, north, first) in [(-10f32, 10f32, 253), (10.0, -10.0, 68)] {
        map.insert("t/0.0", [0]);
        map.insert("t/1.0", [9]);
        map.insert("lat/0", south.to_le_bytes());
        map.insert("lat/1", north.to_le_bytes());
        map.insert("lon/0", 5f32.to_le_bytes());
        assert_eq!(image(&map, "t").1[0], first, "{south}");
    }
}

/// A grid of 40 x 30 chunks, of which 64 may be read.
#[test]
fn at_most_64_chunks_are_read_and_the_nearest_items_shown() {
    let map = testing::hierarchy(&[("a", "\"|u1\"", &[40, 30], "{}")]);
    for row in 0..40u8 {
        for column in 0..30u8 {
            map.insert(
                &format!("a/{row}.{column}"),
                [if column < 15 { 10 } else { row + 20 }],
            );
        }
    }
    let array = map.array("a");
    let described = crate::describe(&map, &array).unwrap();
    let frame = PreviewFrame::of(&described).unwrap();
    let plane = SampledPlane {
        frame: &frame,
        array: &described,
        level: &array,
    };
    let chunks = plane.chunks(&array.grid().unwrap()).count();
    assert!((50..=64).contains(&chunks), "{chunks}");
    let samples = plane.read().unwrap();
    assert_eq!(samples.len(), 1200);
    // each sample is of a chunk at most five rows away
    for (number, sample) in samples.iter().enumerate() {
        let [row, column] = [number / 30, number % 30];
        if column < 13 {
            assert_eq!(*sample, 10.0, "{row} {column}");
        } else if column > 17 {
            assert!(
                (sample - 20.0 - row as f64).abs() <= 5.0,
                "{row} {column}: {sample}"
            );
        }
    }
}

#[test]
fn bytes_of_three_colors_are_shown_as_they_are() {
    let attributes = r#"{"_ARRAY_DIMENSIONS":["y","x","rgb"]}"#;
    let map = testing::hierarchy(&[("a", "\"|u1\"", &[1, 2, 3], attributes)]);
    for (number, byte) in [200u8, 100, 3, 0, 255, 7].iter().enumerate() {
        map.insert(&format!("a/0.{}.{}", number / 3, number % 3), [*byte]);
    }
    assert_eq!(
        image(&map, "a"),
        ([2, 1], vec![200, 100, 3, 255, 0, 255, 7, 255])
    );
}

#[test]
fn names_and_channels_decide_on_colors() {
    let named = |name: &str, dtype, len| {
        let mut array = testing::plain(dtype, &[5, 6, len]);
        array.axes[2] = DescribedAxis {
            name: Some(name.into()),
            ..DescribedAxis::of_length(len)
        };
        array
    };
    let rule = |array: &Described| PreviewFrame::of(array).unwrap().rule;
    let rgb = |has_opacity| ColorRule::Rgb { has_opacity };
    assert_eq!(rule(&named("RGB", "|u1", 3)), rgb(false));
    assert_eq!(rule(&named("c", "|u1", 4)), rgb(true));
    assert_eq!(rule(&named("band", "|u1", 4)), rgb(false));
    for other in [
        named("rgb", "<u2", 3),
        named("rgb", "|u1", 5),
        named("time", "|u1", 3),
    ] {
        assert_eq!(rule(&other), ColorRule::Map);
    }
    assert_eq!(PreviewFrame::of(&named("rgb", "|u1", 3)).unwrap().width, 6);
    assert_eq!(rule(&testing::plain("|u1", &[5, 6, 3])), rgb(false));
    assert_eq!(rule(&testing::plain("|u1", &[5, 3, 3])), ColorRule::Map);
    assert_eq!(PreviewFrame::of(&named("time", "|u1", 3)).unwrap().width, 3);
    let channel = |color| ImageChannel { name: None, color };
    let with = |colors: &[Option<u32>], dtype| Described {
        image: Some(ImageInfo {
            name: None,
            channel_axis: Some(2),
            channels: colors.iter().copied().map(channel).collect(),
        }),
        ..named("c", dtype, 3)
    };
    let primaries = [Some(0xff0000), Some(0x00ff00), Some(0x0000ff)];
    assert_eq!(rule(&with(&primaries, "|u1")), rgb(false));
    let blend = |colors: &[u32]| ColorRule::Blend(colors.into());
    let expected = blend(&[0xff0000, 0x00ff00, 0x0000ff]);
    assert_eq!(rule(&with(&primaries, "<u2")), expected);
    let green = [Some(0x00ff00)];
    assert_eq!(rule(&with(&green, "|u1")), blend(&[0x00ff00, 0xffffff]));
    assert_eq!(rule(&with(&[None; 3], "<u2")), blend(&[0xffffff]));
    assert_eq!(rule(&with(&[], "<u2")), ColorRule::Map);
}

#[test]
fn light_of_channels_is_added() {
    let rule = ColorRule::Blend(vec![0xff0000, 0x808000]);
    let samples = [0.0, 1.0, 2.0, f64::NAN, 2.0, 0.0, 1.0, f64::NAN];
    let expected = [
        128, 128, 0, 255, 128, 0, 0, 255, 255, 64, 0, 255, 0, 0, 0, 0,
    ];
    let shown = colors::paint(&rule, &samples, 4);
    // percentiles of three values: 0.04 and 1.96
    let is_near = |(shown, expected): (&u8, &i32)| (i32::from(*shown) - expected).abs() <= 4;
    assert!(shown.iter().zip(&expected).all(is_near), "{shown:?}");
}

#[test]
fn extreme_samples_have_colors() {
    let most = f64::MAX;
    for samples in [
        [-most, most, 0.0, 1.0],
        [f64::INFINITY, 0.0, f64::NEG_INFINITY, 5.0],
    ] {
        let pixels = colors::paint(&ColorRule::Map, &samples, 4);
        assert!(pixels.chunks(4).all(|pixel| pixel[3] == 255));
    }
    let nothing = colors::paint(&ColorRule::Map, &[f64::NAN; 4], 4);
    assert_eq!(nothing, [0; 16]);
    // a mask with few ones shows them
    let mut mask = [0.0; 100];
    mask[7] = 1.0;
    let pixels = colors::paint(&ColorRule::Map, &mask, 100);
    assert_eq!((pixels[0], pixels[28]), (68, 253));
}

#[test]
fn the_smallest_level_that_suffices_is_read() {
    let group = r#"{"multiscales":[{"version":"0.4","axes":[{"name":"y","type":"space"},{"name":"x","type":"space"}],
        "datasets":[{"path":"0"},{"path":"1"},{"path":"2"}]}]}"#;
    let shapes: [&[u64]; 3] = [&[2048, 2048], &[1024, 1024], &[256, 256]];
    let map = testing::hierarchy(&[]);
    map.insert(".zattrs", group);
    for (number, shape) in shapes.iter().enumerate() {
        let document = format!(
            r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{shape:?},"dtype":"|u1","compressor":null,
            "fill_value":{number},"order":"C","filters":null}}"#
        );
        map.insert(&format!("{number}/.zarray"), document);
    }
    let level = |path: &str| {
        let described = crate::describe(&map, &map.array(path)).unwrap();
        let frame = PreviewFrame::of(&described).unwrap();
        frame.level(&map, &described).unwrap().key
    };
    let key = |path| Key::normalize(path).unwrap();
    assert_eq!(level("0"), key("1"));
    assert_eq!(level("1"), key("1"));
    assert_eq!(level("2"), key("2"));
}

#[test]
fn a_short_chunk_is_an_error_that_names_the_array() {
    let map = testing::hierarchy(&[("a", "\"<f8\"", &[1, 1], "{}")]);
    map.insert("a/0.0", [0; 3]);
    let described = crate::describe(&map, &map.array("a")).unwrap();
    let e = Format::Preview.image(&map, &described).unwrap_err();
    assert!(e.to_string().contains('a'), "{e}");
    assert_ne!(e.errno(), libc::ENOENT);
}
