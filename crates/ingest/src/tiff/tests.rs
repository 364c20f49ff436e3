use super::*;
use crate::Incoming;
use std::io::Write;

/// A tag with short or long numbers: the tag, and the numbers.
type Tag<'a> = (u16, &'a [u32]);

/// The tags of a page of 4 rows of 3 bytes in two strips, whose pixels begin at byte 8.
const PLAIN: [Tag; 8] = [
    (256, &[3]),
    (257, &[4]),
    (258, &[8]),
    (262, &[1]),
    (273, &[8, 14]),
    (277, &[1]),
    (278, &[2]),
    (279, &[6, 6]),
];

/// Returns a file with twelve bytes of pixels, and a directory of these tags for each page.
fn bytes(pages: &[Vec<Tag>]) -> Vec<u8> {
    let mut bytes = b"II*\0\x14\0\0\0abcdefghijkl".to_vec();
    for (n, tags) in pages.iter().enumerate() {
        let end = bytes.len() + 2 + 12 * tags.len() + 4;
        let mut values = Vec::new();
        bytes.extend((tags.len() as u16).to_le_bytes());
        for (tag, numbers) in tags {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(4u16.to_le_bytes());
            bytes.extend((numbers.len() as u32).to_le_bytes());
            match numbers {
                [one] => bytes.extend(one.to_le_bytes()),
                list => {
                    bytes.extend(((end + values.len()) as u32).to_le_bytes());
                    list.iter().for_each(|one| values.extend(one.to_le_bytes()));
                }
            }
        }
        let next = if n + 1 < pages.len() {
            end + values.len()
        } else {
            0
        };
        bytes.extend((next as u32).to_le_bytes());
        bytes.extend(values);
    }
    bytes
}

/// Returns the tags with one of them replaced, or added.
fn with<'a>(tag: u16, numbers: &'a [u32]) -> Vec<Tag<'a>> {
    let mut tags: Vec<Tag> = PLAIN.to_vec();
    tags.retain(|(known, _)| *known != tag);
    tags.push((tag, numbers));
    tags
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn refusal(bytes: &[u8]) -> String {
    match Incoming::open(&file(bytes)) {
        Ok(incoming) => panic!("{:?}", incoming.array(0)),
        Err(e) => e.message().to_string(),
    }
}

fn read(file: &File, array: &IncomingArray) -> Result<Vec<u8>> {
    let shape = &array.shape;
    let mut out = vec![0; shape.iter().product::<u64>() as usize];
    let start = vec![0; shape.len()];
    let scratch = &mut Vec::new();
    array
        .items
        .read_box(file, &start, shape, shape, &mut out, scratch)?;
    Ok(out)
}

#[test]
fn strips_that_follow_each_other_are_a_place_and_others_are_blocks() {
    let plain = file(&bytes(&[PLAIN.to_vec()]));
    let array = Incoming::open(&plain).unwrap().array(0).unwrap();
    assert_eq!((&array.dtype, &array.shape), (&"|u1".into(), &vec![4, 3]));
    assert_eq!(array.items.place().strides, [3, 1]);
    assert_eq!(read(&plain, &array).unwrap(), b"abcdefghijkl");
    let swapped = file(&bytes(&[with(273, &[14, 8])]));
    let array = Incoming::open(&swapped).unwrap().array(0).unwrap();
    assert!(matches!(array.items, ItemSource::Tiff(_)));
    assert_eq!(read(&swapped, &array).unwrap(), b"ghijklabcdef");
    // a strip that the file lacks
    let sparse = file(&bytes(&[with(279, &[0, 6])]));
    let array = Incoming::open(&sparse).unwrap().array(0).unwrap();
    assert_eq!(read(&sparse, &array).unwrap(), b"\0\0\0\0\0\0ghijkl");
    let short = file(&bytes(&[with(279, &[5, 6])]));
    let array = Incoming::open(&short).unwrap().array(0).unwrap();
    let e = read(&short, &array).unwrap_err();
    assert_eq!(e.message(), "page 1: a strip or tile has 5 of 6 bytes");
}

#[test]
fn pages_become_a_dimension_and_lower_resolutions_are_left_out() {
    let reduced = with(254, &[1]);
    let file = file(&bytes(&[PLAIN.to_vec(), reduced, PLAIN.to_vec()]));
    let array = Incoming::open(&file).unwrap().array(0).unwrap();
    assert_eq!(array.shape, [2, 4, 3]);
    assert_eq!(array.dimensions.as_deref().unwrap(), ["page", "y", "x"]);
    assert_eq!(read(&file, &array).unwrap(), b"abcdefghijklabcdefghijkl");
}

#[test]
fn boxes_are_parts_of_blocks() {
    let form = |is_planar| TiffForm {
        rows: 5,
        columns: 7,
        samples: 3,
        is_planar,
        kind: form::ItemKind {
            letter: 'u',
            size: 1,
        },
        is_big_endian: false,
        block: [2, 4],
        is_tiled: true,
        photometric: 1,
    };
    // the byte of a pixel tells its place
    let pixel = |sample: u64, y: u64, x: u64| (sample * 64 + y * 8 + x) as u8;
    for is_planar in [false, true] {
        let form = form(is_planar);
        let mut bytes = Vec::new();
        let mut blocks = Vec::new();
        let [planes, within] = if is_planar { [3, 1] } else { [1, 3] };
        for plane in 0..planes {
            for (i, j) in (0..3).flat_map(|i| [(i, 0), (i, 1)]) {
                blocks.push((bytes.len() as u64, 2 * 4 * within));
                for n in 0..2 * 4 * within {
                    let y = i * 2 + n / within / 4;
                    let x = j * 4 + n / within % 4;
                    bytes.push(pixel(plane + n % within, y, x));
                }
            }
        }
        let page = TiffPage {
            number: 1,
            compression: compression::NONE,
            predictor: 1,
            blocks,
        };
        let values = TiffValues::new(form, vec![page], vec![3, 5, 7], None);
        let file = file(&bytes);
        for start in (0..3 * 5 * 7).map(|n| [n / 35, n / 7 % 5, n % 7]) {
            for counts in [[1, 1, 1], [2, 3, 2], [3, 5, 7]] {
                let counts = [0, 1, 2].map(|n: usize| counts[n].min([3, 5, 7][n] - start[n]));
                let lengths = counts.map(|count| count + 1);
                let mut out = vec![255; lengths.iter().product::<u64>() as usize];
                values
                    .read_box(&file, &start, &counts, &lengths, &mut out)
                    .unwrap();
                for (n, found) in (0..).zip(out) {
                    let [s, y, x] = [
                        n / lengths[2] / lengths[1],
                        n / lengths[2] % lengths[1],
                        n % lengths[2],
                    ];
                    let is_inside = s < counts[0] && y < counts[1] && x < counts[2];
                    let expected = if is_inside {
                        pixel(start[0] + s, start[1] + y, start[2] + x)
                    } else {
                        255
                    };
                    assert_eq!(found, expected, "{start:?} {counts:?}");
                }
            }
        }
    }
}

#[test]
fn damaged_files_are_refused_with_the_reason() {
    let plain = bytes(&[PLAIN.to_vec()]);
    for end in 8..plain.len() {
        let said = refusal(&plain[..end]);
        assert!(said.contains(&format!("ends at byte {end}")), "{said}");
    }
    let mut circle = bytes(&[PLAIN.to_vec(), PLAIN.to_vec()]);
    let next = circle.len() - 4 - 16;
    circle[next..next + 4].copy_from_slice(&20u32.to_le_bytes());
    assert!(refusal(&circle).contains("in a circle"));
    assert_eq!(refusal(b"II*\0\0\0\0\0"), "a TIFF file without a page");
    assert!(refusal(b"II*\0\x08\0\0\0\xff\xff").contains("65535 tags"));
    let big = b"MM\0\x2b\0\x08\0\0\0\0\0\0\0\0\0\x10\xff\xff\xff\xff\xff\xff\xff\xff";
    assert!(refusal(big).contains("tags"));
    for (tag, numbers, reason) in [
        (256, &[0][..], "page 1: 4 rows and 0 columns"),
        (257, &[u32::MAX], "page 1: 4294967295 rows"),
        (257, &[1 << 30], "page 1: offsets of 2 and sizes of 2"),
        (258, &[1], "samples of 1 bits and format 1"),
        (258, &[8, 16], "samples of several types"),
        (259, &[7], "compression by JPEG"),
        (262, &[6], "its colors are YCbCr"),
        (266, &[2], "in reverse"),
        (273, &[8, 100_000], "the file ends at byte"),
        (277, &[0], "columns of 0 samples"),
        (
            277,
            &[65535],
            "page 1: a strip or tile has 6 of 393210 bytes",
        ),
        (278, &[0], "in blocks of [0, 3]"),
        (278, &[1], "of 4 strips or tiles"),
        (279, &[6, u32::MAX], "the file ends at byte"),
        (322, &[16], "in blocks of [0, 16]"),
        (339, &[5], "samples of 8 bits and format 5"),
        (254, &[4], "page 1: a mask"),
        (254, &[1], "without a page"),
    ] {
        let bytes = bytes(&[with(tag, numbers)]);
        let file = file(&bytes);
        let said = match Incoming::open(&file) {
            Ok(incoming) => read(&file, &incoming.array(0).unwrap()).unwrap_err(),
            Err(e) => e,
        };
        assert!(said.message().contains(reason), "{tag}: {said}");
    }
    let other = bytes(&[PLAIN.to_vec(), with(256, &[2])]);
    assert!(refusal(&other).starts_with("page 2: another size"));
}

/// Boxes that share strips, in the usual order, decode each strip once.
#[test]
fn strips_are_kept_for_the_next_box() {
    let file = file(&bytes(&[with(273, &[14, 8])]));
    let array = Incoming::open(&file).unwrap().array(0).unwrap();
    let read = |start: &[u64]| {
        let mut out = vec![0; 4];
        let scratch = &mut Vec::new();
        let items = &array.items;
        items
            .read_box(&file, start, &[4, 1], &[4, 1], &mut out, scratch)
            .map(|()| out)
    };
    assert_eq!(read(&[0, 0]).unwrap(), b"gjad");
    file.set_len(0).unwrap();
    assert_eq!(read(&[0, 1]).unwrap(), b"hkbe");
    assert_eq!(read(&[0, 2]).unwrap(), b"ilcf");
}

/// Chunks are whole tiles, or as many strips as make 4 MiB.
#[test]
fn chunks_are_strips_and_tiles() {
    let form = |rows, columns, samples, block, is_tiled| TiffForm {
        rows,
        columns,
        samples,
        is_planar: false,
        kind: form::ItemKind {
            letter: 'u',
            size: 2,
        },
        is_big_endian: false,
        block,
        is_tiled,
        photometric: 1,
    };
    for (form, shape, expected) in [
        (
            form(10_000, 8_000, 1, [1, 8_000], false),
            &[10_000, 8_000][..],
            Some(vec![262, 8_000]),
        ),
        (
            form(4_000, 4_000, 3, [512, 512], true),
            &[3, 4_000, 4_000],
            Some(vec![3, 512, 512]),
        ),
        (
            form(300, 4_000, 1, [64, 64], true),
            &[5, 300, 4_000],
            Some(vec![1, 128, 128]),
        ),
        // one strip is too large
        (
            form(10_000, 8_000, 1, [10_000, 8_000], false),
            &[10_000, 8_000],
            None,
        ),
        // many pages are too small
        (form(50, 60, 1, [50, 60], false), &[900, 50, 60], None),
    ] {
        assert_eq!(chunks(&form, shape), expected, "{shape:?}");
    }
}
