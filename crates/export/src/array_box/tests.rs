//! Boxes of small arrays, compared with the items that NumPy's rules select.

use super::*;
use crate::testing;
use crate::{ImageChannel, Role};
use proptest::prelude::*;

#[track_caller]
fn parsed(text: &str, shape: &[u64]) -> ArrayBox {
    ArrayBox::parse(text, shape).unwrap()
}

/// Returns the shape of a box of an array with items of one byte, and its items as their numbers.
fn items(text: &str, shape: &[u64]) -> (Vec<u64>, Vec<u64>) {
    let part = parsed(text, shape);
    let metadata = part.metadata(&testing::metadata("\"|u1\"", shape));
    (metadata.shape, part.runs(1).flatten().collect())
}

#[test]
fn ranges_are_those_of_numpy() {
    for (text, shape, expected) in [
        ("1:3,2:4", &[2, 2][..], &[7, 8, 12, 13][..]),
        ("1:3,:", &[2, 5], &[5, 6, 7, 8, 9, 10, 11, 12, 13, 14]),
        ("1:3", &[2, 5], &[5, 6, 7, 8, 9, 10, 11, 12, 13, 14]),
        (" 2 , 1 : 3 ", &[2], &[11, 12]),
        ("-1,-2:", &[2], &[18, 19]),
        ("2:3,0", &[1], &[10]),
        (":,-5", &[4], &[0, 5, 10, 15]),
        ("3,4", &[], &[19]),
        ("4:,:", &[0, 5], &[]),
        ("3:1,:", &[0, 5], &[]),
        (":-3,:1", &[1, 1], &[0]),
    ] {
        assert_eq!(
            items(text, &[4, 5]),
            (shape.to_vec(), expected.to_vec()),
            "{text}"
        );
    }
    assert_eq!(items("", &[4, 5]), (vec![4, 5], (0..20).collect()));
    assert_eq!(items("", &[]), (vec![], vec![0]));
    assert_eq!(items(":,3", &[0, 4]), (vec![0], vec![]));
}

#[test]
fn what_is_no_box_is_refused() {
    for (text, why) in [
        (
            "1:2:1",
            "\"1:2:1\" has a step; a box has all items between start:stop",
        ),
        (
            "::",
            "\"::\" has a step; a box has all items between start:stop",
        ),
        ("4", "4 is outside of a dimension of 4 items"),
        ("-5", "-5 is outside of a dimension of 4 items"),
        ("0:5", "5 is outside of a dimension of 4 items"),
        (
            "0:99999999999999999999",
            "99999999999999999999 is outside of a dimension of 4 items",
        ),
        (
            "a:",
            "\"a\" is not an index; give start:stop, : or one index",
        ),
        (
            ",1",
            "\"\" is not an index; give start:stop, : or one index",
        ),
        (":,:,:", "3 ranges, but 2 dimensions"),
    ] {
        let e = ArrayBox::parse(text, &[4, 5]).unwrap_err();
        assert_eq!(e.message(), why, "{text}");
    }
}

#[test]
fn coordinates_are_those_of_the_items() {
    let axis = |coordinates| DescribedAxis {
        coordinates,
        ..DescribedAxis::of_length(6)
    };
    let irregular = |values: &[f64]| Coordinates::Irregular {
        values: values.to_vec(),
    };
    let regular = |first, step| Coordinates::Regular { first, step };
    let uneven = [0.0, 1.0, 3.0, 5.0, 7.0, 8.0];
    let array = Described {
        axes: vec![
            axis(regular(10.0, -0.5)),
            axis(irregular(&uneven)),
            axis(Coordinates::Unknown),
        ],
        ..Described::of_metadata(
            &zarrfs_base::key::Key::root(),
            &testing::metadata("\"<f4\"", &[6, 6, 6]),
        )
    };
    let shown = |text: &str| parsed(text, &[6, 6, 6]).describe(&array).axes;
    let of_box = |text: &str| -> Vec<Coordinates> {
        shown(text)
            .into_iter()
            .map(|axis| axis.coordinates)
            .collect()
    };
    let unknown = Coordinates::Unknown;
    assert_eq!(
        of_box("2:4,0:3,:"),
        [regular(9.0, -0.5), irregular(&uneven[..3]), unknown.clone()]
    );
    assert_eq!(of_box("5,1:5,0"), [regular(1.0, 2.0)]);
    assert_eq!(
        of_box("5:6,4:6"),
        [regular(7.5, -0.5), regular(7.0, 1.0), unknown]
    );
    assert_eq!(of_box("0,4:5,0"), [irregular(&[7.0])]);
    let lengths: Vec<u64> = shown("2:4,0:3,:").iter().map(|axis| axis.len).collect();
    assert_eq!(lengths, [2, 3, 6]);
    assert_eq!(shown("2:4,0:3,:")[0].role, Role::Other);
}

#[test]
fn channels_of_an_image_are_those_of_the_box() {
    let channel = |name: &str| ImageChannel {
        name: Some(name.into()),
        color: None,
    };
    let image = ImageInfo {
        name: Some("image".into()),
        channel_axis: Some(1),
        channels: ["r", "g", "b"].map(channel).to_vec(),
    };
    let shown = |text: &str| parsed(text, &[2, 4, 6]).image(image.clone());
    let same = shown("0:1,1:3,:");
    assert_eq!((same.channel_axis, same.channels.len()), (Some(1), 2));
    assert_eq!(same.channels[0], channel("g"));
    let moved = shown("1,2:4");
    assert_eq!(
        (moved.channel_axis, moved.channels),
        (Some(0), vec![channel("b")])
    );
    let none = shown(":,1");
    assert_eq!((none.channel_axis, none.channels), (None, vec![]));
    assert_eq!(none.name.as_deref(), Some("image"));
}

#[test]
fn a_box_of_a_rotated_grid_lies_where_it_lies_in_the_array() {
    let mut array = Described {
        geotransform: Some([100.0, 3.0, 4.0, 200.0, 4.0, -3.0]),
        ..testing::geographic()
    };
    array.axes[0].labels = ["a", "b", "c", "d"].map(String::from).into();
    let shown = parsed("1:3,2:,1:", &[4, 6, 10]).describe(&array);
    let expected = [100.0 + 3.0 + 8.0, 3.0, 4.0, 200.0 + 4.0 - 6.0, 4.0, -3.0];
    assert_eq!(shown.geotransform, Some(expected));
    assert_eq!(*shown.axes[0].labels, ["b", "c"].map(String::from));
}

proptest! {
    #[test]
    fn runs_are_the_items_between_the_bounds(
        dimensions in proptest::collection::vec((0u64..5, 0u64..5, 0u64..5, any::<bool>()), 0..4),
        item in 1u64..4,
    ) {
        let mut words = Vec::new();
        let mut shape = Vec::new();
        let mut wanted: Vec<u64> = vec![0];
        for (len, a, b, is_single) in dimensions {
            let len = len.max(u64::from(is_single));
            let start = a.min(len.saturating_sub(u64::from(is_single)));
            let stop = if is_single { start + 1 } else { b.min(len).max(start) };
            words.push(if is_single { format!("{start}") } else { format!("{start}:{stop}") });
            shape.push(len);
            wanted = wanted
                .iter()
                .flat_map(|n| (start..stop).map(move |index| n * len + index))
                .collect();
        }
        let part = ArrayBox::parse(&words.join(","), &shape).unwrap();
        let mut runs: Vec<Range<u64>> = part.runs(item).collect();
        let bytes: Vec<u64> = runs.iter().cloned().flatten().collect();
        let expected: Vec<u64> = wanted.iter().flat_map(|n| n * item..(n + 1) * item).collect();
        prop_assert_eq!(bytes, expected);
        // bytes that lie side by side are one run
        let all = runs.len();
        runs.dedup_by(|next, last| last.end == next.start);
        prop_assert_eq!(all, runs.len());
    }
}
