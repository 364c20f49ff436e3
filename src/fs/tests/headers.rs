//! Edits of every file that describes an array or a group. "What a program changes in one is stored,
//! refused with an error, or named in `.zarrfs/stats`" (docs/other-programs.md): tests change each
//! word of each text and each byte of each binary header, and look at what becomes of it.

use super::with_tree;
use crate::fs::tests::model::mount;
use crate::fs::tree::{Headers, Views};
use crate::fs::*;
use zarrfs_export::{Format, GroupFormat, sets_flags_alone};
use zarrfs_store::MemoryStore;
use zarrfs_store::testing::FaultyStore;

/// The array with the most headers, a packed one, and their coordinates.
const DOCUMENTS: [(&str, &str); 10] = [
    (
        "a",
        r#"{"_ARRAY_DIMENSIONS":["time","lat","lon"],"units":"K","long_name":"air"}"#,
    ),
    (
        "p",
        r#"{"_ARRAY_DIMENSIONS":["time","lat","lon"],"scale_factor":0.5,"add_offset":10,"_FillValue":-9}"#,
    ),
    (
        "time",
        r#"{"_ARRAY_DIMENSIONS":["time"],"units":"days since 2000-01-01"}"#,
    ),
    (
        "lat",
        r#"{"_ARRAY_DIMENSIONS":["lat"],"units":"degrees_north"}"#,
    ),
    (
        "lon",
        r#"{"_ARRAY_DIMENSIONS":["lon"],"units":"degrees_east"}"#,
    ),
    ("a/.zarray", r#"[2,3,4] [1,3,4] <f4 -1"#),
    ("p/.zarray", r#"[2,3,4] [1,3,4] <i2 -9"#),
    ("time/.zarray", r#"[2] [2] <f8 0"#),
    ("lat/.zarray", r#"[3] [3] <f8 0"#),
    ("lon/.zarray", r#"[4] [4] <f8 0"#),
];

/// WKT of UTM zone 32 on WGS 84, as GDAL writes it.
const UTM: &str = r#"PROJCS["WGS 84 / UTM zone 32N",GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]],PROJECTION["Transverse_Mercator"],PARAMETER["latitude_of_origin",0],PARAMETER["central_meridian",9],PARAMETER["scale_factor",0.9996],PARAMETER["false_easting",500000],PARAMETER["false_northing",0],UNIT["metre",1],AXIS["Easting",EAST],AXIS["Northing",NORTH],AUTHORITY["EPSG","32632"]]"#;

fn store() -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::default());
    store.insert(".zgroup", br#"{"zarr_format":2}"#.to_vec());
    store.insert(".zattrs", br#"{"title":"a group"}"#.to_vec());
    for (key, text) in DOCUMENTS {
        let words: Vec<&str> = text.split(' ').collect();
        if let ([shape, chunks, dtype, fill], true) = (&words[..], key.ends_with(".zarray")) {
            let document = format!(
                r#"{{"zarr_format":2,"shape":{shape},"chunks":{chunks},"dtype":"{dtype}","compressor":null,
                "fill_value":{fill},"order":"C","filters":null}}"#
            );
            store.insert(key, document.into_bytes());
        } else {
            store.insert(&format!("{key}/.zattrs"), text.as_bytes().to_vec());
        }
    }
    for (name, step) in [("time", 1.0), ("lat", -10.0), ("lon", 20.0)] {
        let values = (0..4).map(|i| 5.0 + step * f64::from(i));
        let bytes: Vec<u8> = values.flat_map(f64::to_le_bytes).collect();
        let len = match name {
            "time" => 16,
            "lat" => 24,
            _ => 32,
        };
        store.insert(&format!("{name}/0"), bytes[..len].to_vec());
    }
    store
}

fn mounted(store: &Arc<MemoryStore>) -> Fs {
    let fs = mount(&Arc::new(FaultyStore::new(store.clone())), 1 << 16);
    let headers = Headers {
        formats: Format::ALL.to_vec(),
        groups: GroupFormat::ALL.to_vec(),
        ..Headers::default()
    };
    with_tree(fs, |tree| {
        tree.with_headers(headers).with_views(Views {
            unpacked: true,
            slices: true,
        })
    })
}

fn inode(fs: &Fs, path: &str) -> u64 {
    path.split('/')
        .fold(1, |parent, name| fs.lookup(parent, name).unwrap().inode)
}

fn content(fs: &Fs, path: &str) -> Vec<u8> {
    let handle = fs.open(inode(fs, path), false, false).unwrap().handle;
    let mut out = Vec::new();
    fs.read(handle, 0, 1 << 20, &mut out).unwrap();
    fs.change().release(handle);
    out
}

/// Writes a whole file in place of another, as `cp` does.
fn replace(fs: &Fs, path: &str, bytes: &[u8]) -> Result<()> {
    let inode = inode(fs, path);
    let handle = fs.open(inode, true, false)?.handle;
    let change = fs.change();
    let written = change
        .set_size(inode, 0, Some(handle))
        .and_then(|_| change.write(handle, 0, bytes))
        .and_then(|_| change.flush(handle));
    change.release(handle);
    written
}

/// Returns the names of the texts that the mount shows in a directory.
fn texts(fs: &Fs, directory: &str) -> Vec<String> {
    let handle = fs.open_directory(inode(fs, directory)).unwrap();
    let mut names = Vec::new();
    fs.read_directory(handle, 0, |name, _| {
        names.push(name.name.clone());
        false
    })
    .unwrap();
    let is_text = |name: &String| {
        Format::of_name(name).is_some_and(|format| !format.holds_flat() && !format.is_image())
    };
    names.retain(is_text);
    names
}

/// Returns the ranges of the words of a text, except those in the reference system of a `data.vrt`,
/// which is known by its code.
fn words(text: &str) -> Vec<std::ops::Range<usize>> {
    let mut words: Vec<std::ops::Range<usize>> = Vec::new();
    let system = text.find("<SRS>").zip(text.find("</SRS>"));
    for (at, c) in text.char_indices() {
        if !c.is_ascii_alphanumeric()
            || system.is_some_and(|(from, to)| (from + 5..to).contains(&at))
        {
            continue;
        }
        match words.last_mut() {
            Some(word) if word.end == at => word.end += 1,
            _ => words.push(at..at + 1),
        }
    }
    words
}

/// Writes a text and returns what became of it: whether its line `line` is shown now.
fn is_stored_or_told(
    fs: &Fs,
    path: &str,
    text: &str,
    line: &str,
) -> std::result::Result<bool, String> {
    let before = fs.stats.problems_met.get();
    if replace(fs, path, text.as_bytes()).is_err() {
        return Ok(false);
    }
    let shown = String::from_utf8(content(fs, path)).unwrap();
    if shown.lines().any(|shown| shown == line) {
        return Ok(true);
    }
    let problems = fs.stats.problems();
    let begin = format!("/{path}: not stored: ");
    if fs.stats.problems_met.get() > before
        && problems.iter().any(|problem| problem.starts_with(&begin))
    {
        Ok(false)
    } else {
        Err(format!(
            "{path}: {line:?} is neither stored nor reported: {problems:?}"
        ))
    }
}

#[test]
fn each_word_of_each_text_is_stored_or_reported() {
    let mut fs = mounted(&store());
    let mut count = 0;
    for directory in ["a", "p", "p.unpacked", "a.slices/1"] {
        let names = texts(&fs, directory);
        assert!(names.len() > 5, "{directory}: {names:?}");
        for name in names {
            let path = format!("{directory}/{name}");
            let text = String::from_utf8(content(&fs, &path)).unwrap();
            assert_eq!(
                is_stored_or_told(&fs, &path, &text, text.lines().next().unwrap()),
                Ok(true)
            );
            // one line of a text for people is like another
            let step = if name.ends_with(".txt") { 9 } else { 1 };
            for word in words(&text).into_iter().step_by(step) {
                let more = if text[word.clone()].parse::<u64>().is_ok() {
                    "9"
                } else {
                    "q"
                };
                let written = format!("{}{more}{}", &text[..word.start], &text[word.start..]);
                let number = text[..word.start].matches('\n').count();
                let line = written.lines().nth(number).unwrap();
                if is_stored_or_told(&fs, &path, &written, line).unwrap_or_else(|e| panic!("{e}")) {
                    fs = mounted(&store());
                }
                count += 1;
            }
        }
    }
    assert!(count > 1000, "{count}");
}

/// Messages name the elements as their format does.
#[test]
fn changed_elements_are_named() {
    let cases = [
        (
            "a/data.vrt",
            "<GeoTransform>-5",
            "<GeoTransform>-6",
            "GeoTransform",
        ),
        (
            "a/data.vrt",
            "-1</NoDataValue>",
            "-2</NoDataValue>",
            "NoDataValue of VRTRasterBand",
        ),
        (
            "a/data.vrt",
            "band=\"2\"",
            "band=\"3\"",
            "band of VRTRasterBand",
        ),
        (
            "a/data.vrt",
            "rasterXSize=\"4\"",
            "rasterXSize=\"5\"",
            "rasterXSize",
        ),
        (
            "a/data.vrt",
            "</VRTDataset>",
            "",
            "a text that is no data.vrt",
        ),
        (
            "a/data.vrt",
            "  <Metadata>",
            "<GCPList><GCP X=\"1\"/></GCPList>  <Metadata>",
            "GCP of GCPList, X of GCP of GCPList",
        ),
        (
            "a.slices/1/data.vrt",
            "<MDI key=\"units\">K",
            "<MDI key=\"units\">C",
            "units of Metadata",
        ),
        ("a/data.raw.hdr", "samples = 4", "samples = 5", "samples"),
        ("a/data.raw.hdr", "Lat/Lon, 1", "Lat/Lon, 2", "map info"),
        ("a/data.nhdr", "sizes: 4", "sizes: 5", "sizes"),
        (
            "a/data.nhdr",
            "space origin: (5",
            "space origin: (6",
            "space origin",
        ),
        ("a/data.mhd", "DimSize = 4", "DimSize = 5", "DimSize"),
        (
            "a/data.xmf",
            "<Xdmf Version=\"2",
            "<Xdmf Version=\"3",
            "Version",
        ),
        ("a/values.txt", "-1", "-2", "line 1"),
    ];
    for (path, from, to, name) in cases {
        let fs = mounted(&store());
        let text = String::from_utf8(content(&fs, path)).unwrap();
        assert!(text.contains(from), "{path}: {from}: {text}");
        replace(&fs, path, text.replace(from, to).as_bytes()).unwrap();
        let problems = fs.stats.problems();
        let wanted = format!(
            "/{path}: not stored: {name} of what was written: change the array's attributes"
        );
        assert_eq!(problems, [wanted], "{path}");
        assert_eq!(String::from_utf8(content(&fs, path)).unwrap(), text);
    }
}

/// A part that is written in place, as `r+` of Python does, changes the text that was shown.
#[test]
fn a_text_may_be_written_in_part() {
    let fs = mounted(&store());
    let path = "a/data.vrt";
    let text = String::from_utf8(content(&fs, path)).unwrap();
    let at = text.find(">K</MDI>").unwrap() as u64 + 1;
    let handle = fs.open(inode(&fs, path), true, false).unwrap().handle;
    fs.change().write(handle, at, b"C").unwrap();
    fs.change().flush(handle).unwrap();
    assert!(
        String::from_utf8(content(&fs, path))
            .unwrap()
            .contains(">C</MDI>")
    );
    fs.change().write(handle, 1, b"x").unwrap();
    fs.change().flush(handle).unwrap();
    fs.change().release(handle);
    assert_eq!(fs.stats.problems().len(), 1);
    // an empty file is not an edit: a shell makes it before its program writes
    replace(&fs, path, b"").unwrap();
    assert_eq!(fs.stats.problems_met.get(), 1);
}

/// A file that is moved onto a header is an edit, too: `sed -i` makes one.
#[test]
fn a_file_moved_onto_a_text_edits_it() {
    let fs = mounted(&store());
    let text = String::from_utf8(content(&fs, "a/data.vrt")).unwrap();
    let array = inode(&fs, "a");
    for (from, to) in [
        (">K</MDI>", ">C</MDI>"),
        ("-1</NoDataValue>", "-2</NoDataValue>"),
    ] {
        let new = fs
            .change()
            .create(array, "sedXyz", true, false, 0o644)
            .unwrap()
            .1
            .handle;
        fs.change()
            .write(new, 0, text.replace(from, to).as_bytes())
            .unwrap();
        fs.change().flush(new).unwrap();
        fs.change().release(new);
        fs.change()
            .rename((array, "sedXyz"), (array, "data.vrt"), false)
            .unwrap();
    }
    let shown = String::from_utf8(content(&fs, "a/data.vrt")).unwrap();
    assert!(
        shown.contains(">K</MDI>"),
        "the second file had that: {shown}"
    );
    let problems = fs.stats.problems();
    assert!(
        problems
            .iter()
            .any(|problem| problem.contains("NoDataValue of VRTRasterBand")),
        "{problems:?}"
    );
}

/// The reference system is stored in `_CRS`, where no other metadata state it.
#[test]
fn a_reference_system_is_stored_or_reported() {
    let projjson = r#"{"type":"ProjectedCRS","name":"x","id":{"authority":"EPSG","code":3035}}"#;
    let shown_for = |fs: &Fs| {
        let text = String::from_utf8(content(fs, "a/data.vrt")).unwrap();
        let system = text
            .split_once("<SRS>")
            .map(|(_, rest)| rest.split("</SRS>").next().unwrap().to_string());
        (system.map(|system| system.replace("&quot;", "\"")), text)
    };
    let written = |text: &str, system: &str| {
        let (before, after) = (
            text.find("<SRS>").unwrap(),
            text.find("</SRS>").unwrap() + 6,
        );
        format!("{}{system}{}", &text[..before], &text[after..])
    };
    let attributes = |fs: &Fs| {
        let found = fs
            .tree
            .hierarchy()
            .attributes(&Key::root().join("a"))
            .unwrap();
        found.get("_CRS").map(zarrfs_base::json::write)
    };
    for (system, shown) in [(UTM, UTM), ("EPSG:3035", "EPSG:3035"), (projjson, projjson)] {
        let fs = mounted(&store());
        let (_, text) = shown_for(&fs);
        let element = format!("<SRS>{}</SRS>", system.replace('"', "&quot;"));
        replace(&fs, "a/data.vrt", written(&text, &element).as_bytes()).unwrap();
        assert!(
            attributes(&fs).is_some(),
            "{system}: {:?}",
            fs.stats.problems()
        );
        let (found, text) = shown_for(&fs);
        let strip = |text: &str| text.replace(' ', "");
        assert!(
            found.as_deref().map(strip) == Some(strip(shown))
                || found.as_deref() == Some("EPSG:3035"),
            "{found:?}"
        );
        assert!(fs.stats.problems().is_empty(), "{:?}", fs.stats.problems());
        // GDAL repeats the system in its own spelling when it changes something else
        let before = attributes(&fs);
        replace(&fs, "a/data.vrt", text.replace(">K<", ">C<").as_bytes()).unwrap();
        assert_eq!(attributes(&fs), before);
        replace(&fs, "a/data.vrt", written(&text, "").as_bytes()).unwrap();
        assert_eq!(attributes(&fs), None);
    }
    // what cannot be stored is named
    let mapped = r#"{"_ARRAY_DIMENSIONS":["time","lat","lon"],"grid_mapping":"crs"}"#;
    let plain = r#"{"_ARRAY_DIMENSIONS":["time","lat","lon"],"units":"K"}"#;
    for (document, system) in [
        (plain, "<SRS>something</SRS>".to_string()),
        (plain, String::new()),
        (mapped, format!("<SRS>{}</SRS>", UTM.replace('"', "&quot;"))),
    ] {
        let store = store();
        store.insert("a/.zattrs", document.as_bytes().to_vec());
        let fs = mounted(&store);
        let (_, text) = shown_for(&fs);
        replace(&fs, "a/data.vrt", written(&text, &system).as_bytes()).unwrap();
        assert_eq!(attributes(&fs), None);
        let problems = fs.stats.problems();
        assert!(
            problems[0].contains("not stored: SRS of what"),
            "{problems:?}"
        );
    }
}

/// Each byte of the header of a container is refused, stored, or reported.
#[test]
fn each_byte_of_each_binary_header_is_stored_or_refused() {
    let mut fs = mounted(&store());
    for path in [
        "a/data.npy",
        "a/data.nii",
        "a/data.tif",
        "p.unpacked/data.npy",
        "dataset.h5",
    ] {
        let shown = content(&fs, path);
        let node = fs.tree.node(inode(&fs, path)).unwrap();
        let (open, _) = CompositeFile::open(&fs, 0, &node, false, false).unwrap();
        let values: Vec<_> = open.values().collect();
        let own =
            (0..shown.len() as u64).filter(|at| !values.iter().any(|range| range.contains(at)));
        // most of a long header is room for a longer one
        let own: Vec<u64> = own.filter(|at| *at < 200 || at % 97 == 0).collect();
        assert!(own.len() > 50, "{path}");
        for at in own {
            let byte = [shown[at as usize] ^ 0x15];
            if path.ends_with(".h5")
                && sets_flags_alone(at as usize, &byte, &shown[at as usize..][..1])
            {
                continue;
            }
            let met = fs.stats.problems_met.get();
            let handle = fs.open(inode(&fs, path), true, false).unwrap().handle;
            let done = fs
                .change()
                .write(handle, at, &byte)
                .and_then(|_| fs.change().flush(handle));
            fs.change().release(handle);
            if done.is_err() || fs.stats.problems_met.get() > met {
                continue;
            }
            let now = content(&fs, path);
            assert_eq!(now.get(at as usize), Some(&byte[0]), "{path}: byte {at}");
            fs = mounted(&store());
        }
    }
}

/// `dataset.nc` has the attributes of the group and its arrays, and other words that are theirs.
#[test]
fn each_word_of_a_netcdf_header_is_stored_or_refused() {
    let edits = [
        ("a group", "A group", true),
        ("title", "Title", true),
        ("days since 2000", "days since 2001", true),
        ("degrees_east", "degrees_EAST", true),
        ("long_name", "Long_name", true),
        ("air", "AIR", true),
        ("_FillValue", "_fillvalue", false),
        ("lat\0\0\0\0\x03", "lot\0\0\0\0\x03", false),
        ("\x01p\0", "\x01q\0", false),
        ("CDF\x02", "CDF\x01", false),
    ];
    for (from, to, is_stored) in edits {
        let fs = mounted(&store());
        let shown = content(&fs, "dataset.nc");
        let find = |bytes: &[u8], text: &str| {
            let mut windows = bytes.windows(text.len());
            windows.position(|window| window == text.as_bytes())
        };
        let at = find(&shown, from).unwrap_or_else(|| panic!("{from:?}"));
        let inode = inode(&fs, "dataset.nc");
        let handle = fs.open(inode, true, false).unwrap().handle;
        let change = fs.change();
        let done = change
            .write(handle, at as u64, to.as_bytes())
            .and_then(|_| change.flush(handle));
        change.release(handle);
        let now = content(&fs, "dataset.nc");
        assert_eq!(done.is_ok(), is_stored, "{from:?}: {done:?}");
        assert_eq!(find(&now, to).is_some(), is_stored, "{from:?}");
        assert_eq!(now == shown, !is_stored, "{from:?}");
    }
}

/// Each member of a document is stored or refused.
#[test]
fn each_member_of_each_document_is_stored_or_refused() {
    let edits = [
        ("a/.zattrs", "units", r#""C""#),
        ("a/.zattrs", "new", "[1,{}]"),
        (".zattrs", "title", "null"),
        (".zgroup", "zarr_format", "3"),
        (".zgroup", "more", "1"),
        ("a/.zarray", "zarr_format", "3"),
        ("a/.zarray", "shape", "[2,3,5]"),
        ("a/.zarray", "chunks", "[2,3,4]"),
        ("a/.zarray", "dtype", r#""<i4""#),
        ("a/.zarray", "compressor", r#"{"id":"zlib","level":1}"#),
        ("a/.zarray", "fill_value", "7"),
        ("a/.zarray", "order", r#""F""#),
        (
            "a/.zarray",
            "filters",
            r#"[{"id":"shuffle","elementsize":4}]"#,
        ),
        ("a/.zarray", "dimension_separator", r#""/""#),
        ("a/.zarray", "more", "1"),
    ];
    for (path, name, value) in edits {
        let store = store();
        let fs = mounted(&store);
        let mut document = zarrfs_base::json::parse_object(&content(&fs, path)).unwrap();
        let value = zarrfs_base::json::parse(value.as_bytes()).unwrap();
        document.map_mut().insert(name.to_string(), value.clone());
        let text =
            zarrfs_base::json::write(&zarrfs_base::json::Value::Object(document.into_parts().0));
        if replace(&fs, path, text.as_bytes()).is_err() || fs.stats.problems_met.get() > 0 {
            continue;
        }
        let mut stored = Vec::new();
        store
            .get(&Key::normalize(path).unwrap(), 1 << 20, &mut stored)
            .unwrap();
        let stored = zarrfs_base::json::parse_object(&stored).unwrap();
        assert_eq!(stored.get(name), Some(&value), "{path}: {name}");
    }
}
