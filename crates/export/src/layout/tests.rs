//! Layouts of a store in memory. Each file is compared, byte by byte, with the file of a store that
//! has the items of the file alone.

use super::*;
use crate::PartContent;
use crate::describe::flat_range;
use crate::testing::{MapHierarchy, hierarchy};
use std::ops::Range;

/// The number of members, times and columns, and the size of the other dimensions.
const MEMBERS: u64 = 3;
const COLUMNS: u64 = 2;

/// The arrays of the sample, with dtype and dimensions.
const ARRAYS: [(&str, &str, &[&str]); 6] = [
    ("ens", "\"<i2\"", &["member", "time", "x"]),
    ("height", "\"<f8\"", &[]),
    ("orog", "\"<f4\"", &["x"]),
    ("tas", "\">f4\"", &["time", "x"]),
    ("time", "\"<i8\"", &["time"]),
    ("time_bnds", "\"<f8\"", &["time", "bnds"]),
];

fn attributes(name: &str, dimensions: &[&str]) -> String {
    let more = match name {
        "time" => r#","units":"days since 2000-02-27","calendar":"noleap","bounds":"time_bnds""#,
        "tas" => r#","coordinates":"height""#,
        _ => "",
    };
    format!(r#"{{"_ARRAY_DIMENSIONS":{dimensions:?}{more}}}"#)
}

/// Returns a store with these members and times of the sample, whose days they are.
fn sample(members: Range<u64>, times: &[u64]) -> MapHierarchy {
    let lengths = |name: &str| match name {
        "member" => members.end - members.start,
        "time" => times.len() as u64,
        _ => COLUMNS,
    };
    let arrays: Vec<(&str, &str, Vec<u64>, String)> = ARRAYS
        .iter()
        .map(|(name, dtype, dimensions)| {
            let shape = dimensions.iter().map(|name| lengths(name)).collect();
            (*name, *dtype, shape, attributes(name, dimensions))
        })
        .collect();
    let borrowed: Vec<(&str, &str, &[u64], &str)> = arrays
        .iter()
        .map(|(name, dtype, shape, attributes)| (*name, *dtype, &shape[..], attributes.as_str()))
        .collect();
    let store = hierarchy(&borrowed);
    store.insert("height/0", 2f64.to_le_bytes());
    for x in 0..COLUMNS {
        store.insert(&format!("orog/{x}"), (x as f32).to_le_bytes());
    }
    for (t, day) in times.iter().enumerate() {
        store.insert(&format!("time/{t}"), day.to_le_bytes());
        for x in 0..COLUMNS {
            let value = (day * 10 + x) as f32;
            store.insert(&format!("tas/{t}.{x}"), value.to_be_bytes());
            let bound = *day as f64 + x as f64;
            store.insert(&format!("time_bnds/{t}.{x}"), bound.to_le_bytes());
            for (m, member) in members.clone().enumerate() {
                let value = (member * 1000 + day * 10 + x) as i16;
                store.insert(&format!("ens/{m}.{t}.{x}"), value.to_le_bytes());
            }
        }
    }
    store
}

/// Ten days, from 02-27 on; no leap day.
fn ten_days() -> MapHierarchy {
    sample(0..MEMBERS, &(0..10).collect::<Vec<_>>())
}

fn pieces(store: &MapHierarchy, rule: &str) -> LayoutPieces {
    LayoutRule::parse(rule)
        .unwrap()
        .pieces(store, &Key::root())
        .unwrap()
}

fn paths(pieces: &LayoutPieces) -> Vec<&str> {
    (0..pieces.len())
        .map(|number| pieces.path(number))
        .collect()
}

fn refusal(store: &MapHierarchy, rule: &str) -> String {
    let found = LayoutRule::parse(rule).and_then(|rule| rule.pieces(store, &Key::root()));
    let text = found.unwrap_err().to_string();
    assert!(!text.contains('\n') && text.contains("layout"), "{text}");
    text
}

/// Returns all bytes of a file of arrays of `store`.
fn bytes(store: &MapHierarchy, file: &Composite) -> Vec<u8> {
    let mut all = Vec::new();
    for part in file.parts() {
        match &part.content {
            PartContent::Bytes(bytes) => all.extend_from_slice(bytes),
            PartContent::Values { bytes, .. } => all.extend_from_slice(bytes),
            PartContent::Flat {
                key, start, form, ..
            } => {
                let array = store.array(key.as_str());
                assert!(part.is_of(&array.metadata));
                let len = part.len / form.shown_item() as u64 * form.stored_item() as u64;
                let mut items = flat_range(&array, *start..*start + len).unwrap();
                form.show(&mut items).unwrap();
                all.extend(items);
            }
            _ => all.resize(all.len() + part.len as usize, 0),
        }
    }
    assert_eq!(all.len() as u64, file.size());
    all
}

fn made(store: &MapHierarchy, pieces: &LayoutPieces, path: &str) -> Vec<u8> {
    let number = pieces.find(path).unwrap();
    let file = pieces.file(store, number, &NetcdfOptions::default());
    bytes(store, &file.unwrap())
}

#[test]
fn names_are_made_of_coordinates() {
    let store = ten_days();
    let months = pieces(&store, "tas/tas_{time:%Y%m}.nc = /tas");
    assert_eq!(paths(&months), ["tas/tas_200002.nc", "tas/tas_200003.nc"]);
    assert_eq!(months.group(), &Key::root());
    let days = pieces(&store, "{time:%m}/{time:%d}-{time:%j}.h5=/tas");
    assert_eq!(
        paths(&days)[..3],
        ["02/27-058.h5", "02/28-059.h5", "03/01-060.h5"]
    );
    let values = pieces(&store, "d{time}.raw = /tas");
    assert_eq!(paths(&values)[8..], ["d8.raw", "d9.raw"]);
    let members = pieces(&store, "{member#:02}/{var}_{time#}.npy = /ens");
    assert_eq!(members.len(), 30);
    assert_eq!(paths(&members)[19..21], ["01/ens_9.npy", "02/ens_0.npy"]);
    let of_each = pieces(&store, "{var}.{time:%Y}.nc = /tas,/orog,/time_bnds");
    assert_eq!(
        paths(&of_each),
        ["tas.2000.nc", "time_bnds.2000.nc"],
        "orog has no time"
    );
    let data = pieces(&store, "{var}.nc = /");
    assert_eq!(paths(&data), ["ens.nc", "orog.nc", "tas.nc"]);
}

#[test]
fn directories_list_their_names() {
    let store = ten_days();
    let days = pieces(&store, "a/{time:%m}/{time:%d}.h5 = /tas");
    let names = |directory: &str| {
        let directory = Key::normalize(directory).unwrap();
        let mut names = Vec::new();
        let mut place = days.first_below(&directory);
        while let Some((name, is_directory, next)) = days.name_at(&directory, place) {
            names.push(format!("{name}{}", if is_directory { "/" } else { "" }));
            place = next;
        }
        names
    };
    assert_eq!(names(""), ["a/"]);
    assert_eq!(names("a"), ["02/", "03/"]);
    assert_eq!(names("a/02"), ["27.h5", "28.h5"]);
    assert_eq!(names("a/0"), [""; 0]);
    assert!(days.has_directory(&Key::root().join("a/03")));
    assert!(!days.has_directory(&Key::root().join("a/03/01.h5")));
    assert_eq!(days.find("a/03"), None);
}

#[test]
fn files_are_those_of_stores_of_their_items() {
    let store = ten_days();
    let two = sample(0..MEMBERS, &[0, 1]);
    let rest = sample(0..MEMBERS, &(2..10).collect::<Vec<_>>());
    for end in ["nc", "h5"] {
        let format = GroupFormat::of_id(end).unwrap();
        // without the arrays that have a cut dimension behind another
        for store in [&store, &two, &rest] {
            store.insert("ens/.zarray", "{}");
        }
        let months = pieces(&store, &format!("{{time:%m}}.{end} = /"));
        for (path, alone) in [("02", &two), ("03", &rest)] {
            let expected = format.file(alone, &Key::root(), &NetcdfOptions::default());
            let found = made(&store, &months, &format!("{path}.{end}"));
            assert!(found == bytes(alone, &expected.unwrap()), "{path}.{end}");
        }
    }
}

#[test]
fn a_file_of_an_array_has_its_coordinates_alone() {
    let store = ten_days();
    let months = pieces(&store, "{time:%m}.nc = /tas");
    let file = months.file(&store, 1, &NetcdfOptions::default()).unwrap();
    let names: Vec<&str> = file.sources.iter().map(Key::as_str).collect();
    assert_eq!(names, ["", "height", "tas", "time", "time_bnds"]);
    let ens = pieces(&store, "{member#}.{time:%m}.raw = /ens");
    let expected: Vec<u8> = (2..10)
        .flat_map(|day| (0..COLUMNS).map(move |x| (2000 + day * 10 + x) as i16))
        .flat_map(i16::to_le_bytes)
        .collect();
    assert_eq!(made(&store, &ens, "2.03.raw"), expected);
}

/// All files have the same types, although the items of some alone would fit in a double.
#[test]
fn a_type_holds_for_all_files() {
    let store = ten_days();
    store.insert("time/9", (i64::MAX - 1).to_le_bytes());
    let kind = |store: &MapHierarchy| {
        let parts = pieces(store, "{time#}.nc = /time");
        let file = parts.file(store, 0, &NetcdfOptions::default()).unwrap();
        let PartContent::Bytes(header) = &file.parts()[0].content else {
            panic!("no header");
        };
        header[3]
    };
    assert_eq!([kind(&ten_days()), kind(&store)], [2, 5]);
}

#[test]
fn bad_layouts_are_refused_in_one_line() {
    let store = ten_days();
    for (rule, why) in [
        ("tas_{time:%Y}.nc", "has no ="),
        ("tas_{time:%Q}.nc = /tas", "unknown field {time:%Q}"),
        ("tas_{time:}.nc = /tas", "unknown field"),
        ("tas_{}.nc = /tas", "unknown field {}"),
        ("tas_{time#:4}.nc = /tas", "unknown field"),
        ("tas_{time.nc = /tas", "has no }"),
        ("tas_time}.nc = /tas", "has no {"),
        ("tas_{time}.grb = /tas", "ends with none of .nc"),
        ("../{time}.nc = /tas", "leaves its directory"),
        ("/a/{time}.nc = /tas", "has an empty part"),
        (".zarrfs/{time}.nc = /tas", "begins as those of documents"),
        ("{time}.nc = /nothing", "no group or array /nothing"),
        ("{level}.nc = /tas", "no coordinate \"level\""),
        ("{x}.nc = /tas", "no coordinate \"x\""),
        (
            "{time}.nc = /ens",
            "the dimensions member, time, x: a cut is along the first",
        ),
        ("{time:%d}.npy = /tas,/time", "holds one array"),
        ("{time_bnds}.nc = /tas", "no coordinate"),
        ("{height:%Y}.nc = /tas", "no coordinate"),
    ] {
        let text = refusal(&store, rule);
        assert!(text.contains(why), "{rule}: {text}");
    }
}

#[test]
fn bad_coordinates_are_refused_with_their_items() {
    let year = 365;
    for (times, rule, why) in [
        (
            vec![0, 1, year, year + 1],
            "{time:%m%d}.nc = /tas",
            "item 2 of \"time\" has the name \"0227\" of item 0",
        ),
        (
            vec![0, 5, 3],
            "{time:%d}.nc = /tas",
            "item 2 of \"time\" is not in order behind item 1",
        ),
        (
            vec![5, 4, 3, 4],
            "{time}.nc = /tas",
            "item 3 of \"time\" is not in order behind item 2",
        ),
        (
            vec![0, 5_000_000],
            "{time:%Y}.nc = /tas",
            "item 1 of \"time\" is no date",
        ),
    ] {
        let text = refusal(&sample(0..1, &times), rule);
        assert!(text.contains(why), "{rule}: {text}");
    }
    // repeated and falling items are in order
    assert_eq!(
        pieces(&sample(0..1, &[5, 5, 4]), "{time}.nc = /tas").len(),
        2
    );
    let store = ten_days();
    for (more, why) in [
        (
            r#","units":"days since 2000-01-01","calendar":"martian""#,
            "unknown calendar \"martian\"",
        ),
        (r#","units":"m""#, "is no time: units \"m\""),
        (
            r#","units":"days since 2000-01-01","_FillValue":3"#,
            "item 3 of \"time\" is missing",
        ),
    ] {
        store.insert(
            "time/.zattrs",
            format!(r#"{{"_ARRAY_DIMENSIONS":["time"]{more}}}"#),
        );
        let text = refusal(&store, "{time:%d}.nc = /tas");
        assert!(text.contains(why), "{text}");
    }
    let long = hierarchy(&[(
        "a",
        "\"|u1\"",
        &[1_000_001, 2],
        r#"{"_ARRAY_DIMENSIONS":["t","x"]}"#,
    )]);
    let text = refusal(&long, "{t#}.raw = /a");
    assert!(text.contains("more than 1000000 files"), "{text}");
    let wide = hierarchy(&[(
        "a",
        "\"|u1\"",
        &[2000, 2000, 2],
        r#"{"_ARRAY_DIMENSIONS":["t","s","x"]}"#,
    )]);
    let text = refusal(&wide, "{t#}_{s#}.raw = /a");
    assert!(
        text.contains("4000000 files are more than 1000000"),
        "{text}"
    );
    // fields without text between them
    let text = refusal(
        &hierarchy(&[(
            "a",
            "\"|u1\"",
            &[12, 12, 2],
            r#"{"_ARRAY_DIMENSIONS":["t","s","x"]}"#,
        )]),
        "{t#}{s#}.raw = /a",
    );
    assert!(
        text.contains("\"110.raw\": t 1, s 10 and t 11, s 0"),
        "{text}"
    );
}

/// While a program makes arrays longer one after another, files end with the shortest.
#[test]
fn growing_arrays_add_files() {
    let store = ten_days();
    let rule = LayoutRule::parse("{time:%d}.nc = /tas").unwrap();
    let before = rule.pieces(&store, &Key::root()).unwrap();
    assert!(before.is_current(&store).unwrap());
    let longer = sample(0..MEMBERS, &(0..12).collect::<Vec<_>>());
    for name in ["tas", "time"] {
        let document = longer.get(&Key::root().join(name).join(".zarray")).unwrap();
        store.insert(&format!("{name}/.zarray"), document);
    }
    assert!(!before.is_current(&store).unwrap());
    // days 10 and 11 are not stored yet, but the bounds are as short as before
    let during = rule.pieces(&store, &Key::root()).unwrap();
    assert_eq!((during.len(), before.len()), (10, 10));
    assert!(!during.is_current(&store).unwrap());
    for (number, path) in paths(&before).into_iter().enumerate() {
        let [old, new] = [&before, &during].map(|pieces| made(&store, pieces, path));
        assert!(old == new, "{path}");
        assert_eq!(before.may_grow(number), number == 9);
    }
    let after = rule.pieces(&longer, &Key::root()).unwrap();
    assert_eq!(after.len(), 12);
    assert!(after.is_current(&longer).unwrap());
    // a shorter store does not show other items under old names
    let shorter = sample(0..MEMBERS, &(0..5).collect::<Vec<_>>());
    let number = before.find("07.nc").unwrap();
    assert!(
        before
            .file(&shorter, number, &NetcdfOptions::default())
            .is_err()
    );
}
