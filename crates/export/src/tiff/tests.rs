use super::super::described::{Coordinates, Crs, CrsKind, DescribedAxis, MetadataNumber, Role};
use super::super::testing;
use super::*;
use zarrfs_base::key::Key;

/// A reader of TIFF files, by TIFF 6.0 and the design of BigTIFF.
struct Read {
    bytes: Vec<u8>,
    /// Size in bytes of an offset, and of the count of a tag's values.
    width: usize,
    is_big_endian: bool,
}

type PageDirectory = BTreeMap<u16, (u16, Vec<u8>)>;

impl Read {
    fn new(bytes: Vec<u8>) -> Self {
        let is_big_endian = bytes.starts_with(b"MM");
        let mut read = Read {
            bytes,
            width: 4,
            is_big_endian,
        };
        if read.number(2, 2) == 43 {
            read.width = 8;
            assert_eq!((read.number(4, 2), read.number(6, 2)), (8, 0));
        }
        read
    }

    fn number(&self, at: usize, len: usize) -> u64 {
        let mut bytes = self.bytes[at..at + len].to_vec();
        if self.is_big_endian {
            bytes.reverse();
        }
        bytes.resize(8, 0);
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    fn directories(&self) -> Vec<PageDirectory> {
        let width = self.width;
        let count_width = if self.width == 8 { 8 } else { 2 };
        let mut at = self.number(width, width) as usize;
        let mut found = Vec::new();
        while at != 0 {
            assert_eq!(at % 2, 0);
            let count = self.number(at, count_width) as usize;
            let entries = (0..count).map(|i| at + count_width + i * (4 + 2 * width));
            found.push(
                entries
                    .map(|entry| self.entry(entry))
                    .collect::<PageDirectory>(),
            );
            assert_eq!(found.last().unwrap().len(), count, "a tag comes twice");
            at = self.number(at + count_width + count * (4 + 2 * width), width) as usize;
        }
        found
    }

    /// Returns a tag with its type and its values as bytes, each number in little-endian order.
    fn entry(&self, at: usize) -> (u16, (u16, Vec<u8>)) {
        let [id, kind] = [at, at + 2].map(|at| self.number(at, 2) as u16);
        let item = [0, 1, 1, 2, 4, 8, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8][usize::from(kind)];
        let len = item * self.number(at + 4, self.width) as usize;
        let field = at + 4 + self.width;
        let from = if len <= self.width {
            field
        } else {
            self.number(field, self.width) as usize
        };
        let mut bytes = self.bytes[from..from + len].to_vec();
        if self.is_big_endian {
            let number = if kind == 5 { 4 } else { item };
            bytes.chunks_mut(number).for_each(<[u8]>::reverse);
        }
        (id, (kind, bytes))
    }
}

fn shorts(directory: &PageDirectory, id: u16) -> Vec<u16> {
    assert_eq!(directory[&id].0, 3, "{id}");
    directory[&id]
        .1
        .chunks_exact(2)
        .map(|b| u16::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

fn longs(directory: &PageDirectory, id: u16) -> Vec<u64> {
    let long = |b: &[u8]| b.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    match directory[&id] {
        (4 | 5, ref bytes) => bytes.chunks_exact(4).map(long).collect(),
        (16, ref bytes) => bytes.chunks_exact(8).map(long).collect(),
        (kind, _) => panic!("tag {id} is of type {kind}"),
    }
}

fn doubles(directory: &PageDirectory, id: u16) -> Vec<f64> {
    assert_eq!(directory[&id].0, 12, "{id}");
    directory[&id]
        .1
        .chunks_exact(8)
        .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

fn text(directory: &PageDirectory, id: u16) -> String {
    assert_eq!(
        (directory[&id].0, directory[&id].1.last()),
        (2, Some(&0)),
        "{id}"
    );
    String::from_utf8(directory[&id].1[..directory[&id].1.len() - 1].to_vec()).unwrap()
}

fn directories(array: &Described) -> Vec<PageDirectory> {
    Read::new(header(array)).directories()
}

#[test]
fn a_small_file_has_the_expected_bytes() {
    let header = header(&testing::plain(">u2", &[3]));
    let expected: &[u8] = b"MM\0\x2a\0\0\0\x20\
        ImageJ=1.53t\nimages=1\n\0\0\
        \0\x0b\
        \x01\0\0\x04\0\0\0\x01\0\0\0\x03\
        \x01\x01\0\x04\0\0\0\x01\0\0\0\x01\
        \x01\x02\0\x03\0\0\0\x01\0\x10\0\0\
        \x01\x03\0\x03\0\0\0\x01\0\x01\0\0\
        \x01\x06\0\x03\0\0\0\x01\0\x01\0\0\
        \x01\x0e\0\x02\0\0\0\x17\0\0\0\x08\
        \x01\x11\0\x04\0\0\0\x01\0\0\x10\0\
        \x01\x15\0\x03\0\0\0\x01\0\x01\0\0\
        \x01\x16\0\x04\0\0\0\x01\0\0\0\x01\
        \x01\x17\0\x04\0\0\0\x01\0\0\0\x06\
        \x01\x53\0\x03\0\0\0\x01\0\x01\0\0\
        \0\0\0\0";
    assert_eq!(&header[..expected.len().min(header.len())], expected);
    assert_eq!(
        (
            header.len(),
            header[expected.len()..].iter().all(|b| *b == 0)
        ),
        (4096, true)
    );
}

#[test]
fn each_item_of_the_leading_dimensions_is_a_page() {
    for dtype in ["<f4", ">f4", "|i1", ">c16"] {
        let array = testing::plain(dtype, &[2, 3, 4, 5]);
        let file = header(&array);
        let pages = Read::new(file.clone()).directories();
        assert_eq!((pages.len(), file.len() % 4096), (6, 0));
        let size = array.metadata.dtype.size() as u64;
        for (i, page) in pages.iter().enumerate() {
            assert_eq!(
                longs(page, STRIP_OFFSETS),
                [file.len() as u64 + i as u64 * 20 * size],
                "{dtype}"
            );
            assert_eq!(
                (longs(page, STRIP_BYTE_COUNTS), longs(page, ROWS_PER_STRIP)),
                (vec![20 * size], vec![4])
            );
            assert_eq!(
                (longs(page, IMAGE_WIDTH), longs(page, IMAGE_LENGTH)),
                (vec![5], vec![4])
            );
            assert_eq!(shorts(page, BITS_PER_SAMPLE), [8 * size as u16]);
            assert_eq!(page.contains_key(&DESCRIPTION), i == 0);
        }
    }
}

#[test]
fn sample_formats_follow_the_dtype() {
    for (dtype, format) in [
        ("|b1", 1),
        ("<u8", 1),
        (">i2", 2),
        (">f4", 3),
        ("<f8", 3),
        ("<c8", 6),
    ] {
        assert_eq!(
            shorts(
                &directories(&testing::plain(dtype, &[2, 3]))[0],
                SAMPLE_FORMAT
            ),
            [format],
            "{dtype}"
        );
    }
}

#[test]
fn large_files_are_bigtiff() {
    let array = testing::plain(">f8", &[3, 1 << 15, 1 << 14]);
    let file = header(&array);
    assert!(file.starts_with(b"MM\0\x2b\0\x08\0\0"));
    let pages = Read::new(file.clone()).directories();
    assert_eq!(
        longs(&pages[2], STRIP_OFFSETS),
        [file.len() as u64 + (2 << 32)]
    );
    assert_eq!(longs(&pages[2], STRIP_BYTE_COUNTS), [1 << 32]);
    assert_eq!(text(&pages[0], DESCRIPTION), "ImageJ=1.53t\nimages=3\n");
}

#[test]
fn overviews_leave_the_file_short_enough() {
    let overview = |len: u64| Overview {
        key: Key::normalize("group/level").unwrap(),
        metadata: testing::metadata("\"|u1\"", &[len, len]).into(),
    };
    let base = 1 << 30;
    let huge = Described {
        overviews: (1..9).map(|n| overview(base - n)).collect(),
        ..testing::plain("|u1", &[base, base])
    };
    let file = file(&huge);
    assert!(file.size() > 1 << 62 && file.size() + huge.size() <= i64::MAX as u64);
    let pages = Read::new(header(&huge)).directories();
    assert_eq!(pages[0][&SUB_IFDS].1.len(), 6 * 8);
    let many = Described {
        overviews: vec![overview(1), overview(1)],
        ..testing::plain("|u1", &[40_000, 2, 2])
    };
    assert_eq!(overviews(&many).len(), 1);
}

#[test]
fn frames_slices_and_channels_are_named_in_the_order_of_image_j() {
    let mut array = testing::microscopy();
    let description = |array: &Described| text(&directories(array)[0], DESCRIPTION);
    // channels before slices: only the number of images can be stated
    assert_eq!(
        description(&array),
        "ImageJ=1.53t\nimages=6\nunit=micrometer\nspacing=2\n"
    );
    let reordered = |array: &mut Described, axes: [DescribedAxis; 4]| {
        let lengths: Vec<u64> = axes.iter().map(|axis| axis.len).collect();
        array.metadata = testing::metadata("\"|u1\"", &lengths);
        array.axes = axes.to_vec();
    };
    let [c, z, y, x] = <[DescribedAxis; 4]>::try_from(array.axes.clone()).unwrap();
    reordered(&mut array, [z.clone(), c.clone(), y.clone(), x.clone()]);
    let expected = "ImageJ=1.53t\nimages=6\nchannels=2\nslices=3\nhyperstack=true\nmode=grayscale\nunit=micrometer\nspacing=2\n";
    assert_eq!(description(&array), expected);
    let t = DescribedAxis {
        role: Role::Time,
        len: 7,
        ..c.clone()
    };
    reordered(&mut array, [t, DescribedAxis { len: 1, ..c }, y, x]);
    assert_eq!(
        description(&array),
        "ImageJ=1.53t\nimages=7\nframes=7\nhyperstack=true\nmode=grayscale\nunit=micrometer\n"
    );
    let page = &directories(&array)[6];
    assert_eq!(
        (longs(page, 282), longs(page, 283)),
        (
            vec![1_000_000_000, 500_000_000],
            vec![1_000_000_000, 500_000_000]
        )
    );
    assert_eq!(shorts(page, 296), [1]);
}

#[test]
fn every_page_has_the_position_of_the_array() {
    let mut array = testing::geographic();
    array.crs = Some(Crs {
        authority: Some("EPSG:4326".into()),
        kind: CrsKind::Geographic,
        ..Crs::default()
    });
    (array.scale, array.offset) = (Some(0.05), Some(260.0));
    let page = &directories(&array)[3];
    assert_eq!(doubles(page, 33550), [0.25, 0.5, 0.0]);
    assert_eq!(doubles(page, 33922), [0.0, 0.0, 0.0, 9.875, 50.25, 0.0]);
    assert_eq!(
        shorts(page, 34735),
        [1, 1, 0, 3, 1024, 0, 1, 2, 1025, 0, 1, 1, 2048, 0, 1, 4326]
    );
    assert_eq!(text(page, 42113), "-9999");
    let expected = "<GDALMetadata>
  <Item name=\"DESCRIPTION\" sample=\"0\" role=\"description\">Air &lt;2 m&gt;</Item>
  <Item name=\"OFFSET\" sample=\"0\" role=\"offset\">260</Item>
  <Item name=\"SCALE\" sample=\"0\" role=\"scale\">0.05</Item>
  <Item name=\"UNITTYPE\" sample=\"0\" role=\"unittype\">K</Item>
</GDALMetadata>
";
    assert_eq!(text(page, 42112), expected);
    assert!(!page.contains_key(&282) && !page.contains_key(&34264));
    // ImageJ shows several pages as a stack
    let first = |array: &Described| directories(array).remove(0);
    assert!(text(&first(&array), DESCRIPTION).starts_with("ImageJ="));
    array.metadata = testing::metadata("\"<f4\"", &[1, 6, 10]);
    array.axes[0].len = 1;
    assert!(!first(&array).contains_key(&DESCRIPTION));
}

#[test]
fn rows_from_south_to_north_have_a_transformation() {
    let mut array = testing::geographic();
    array.axes[1].coordinates = Coordinates::Regular {
        first: 50.0,
        step: 0.5,
    };
    array.crs = Some(Crs {
        authority: Some("EPSG:3035".into()),
        kind: CrsKind::Projected,
        ..Crs::default()
    });
    array.nodata = Some(MetadataNumber::Float(f64::NAN));
    let page = &directories(&array)[0];
    let rows = [
        [0.25, 0.0, 0.0, 9.875],
        [0.0, 0.5, 0.0, 49.75],
        [0.0; 4],
        [0.0, 0.0, 0.0, 1.0],
    ];
    assert_eq!(doubles(page, 34264), rows.as_flattened());
    assert_eq!(
        shorts(page, 34735)[4..],
        [1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 3035]
    );
    assert!(!page.contains_key(&33550));
    assert_eq!(text(page, 42113), "nan");
    // the kind of the reference system behind the code is unknown
    array.crs = Some(Crs {
        authority: Some("EPSG:3035".into()),
        ..Crs::default()
    });
    assert!(!directories(&array)[0].contains_key(&34735));
}

#[test]
fn unsupported_types_and_shapes_are_refused() {
    for dtype in ["|S3", "<M8[s]", "<f2", "<f16", "|V2"] {
        assert!(
            !fits(&testing::metadata(&format!("{dtype:?}"), &[4, 6])),
            "{dtype}"
        );
    }
    for shape in [&[] as &[u64], &[4, 0], &[65_537, 1, 1], &[1 << 31]] {
        assert!(!fits(&testing::metadata("\"|i1\"", shape)), "{shape:?}");
    }
    let most = testing::plain("<i2", &[256, 256, 1, 1]);
    assert!(fits(&most.metadata));
    let file = Read::new(header(&most));
    assert_eq!(
        (
            file.directories().len(),
            file.bytes.len() < MAX_HEADER as usize
        ),
        (65_536, true)
    );
}
