//! Sample arrays for the tests of formats.

use super::described::{Coordinates, Crs, CrsKind, Described, DescribedAxis, MetadataNumber, Role};
use zarrfs_base::json;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::Key;

/// Returns the metadata of an array with the dtype, in JSON, and shape.
pub fn metadata(dtype: &str, shape: &[u64]) -> ArrayMetadata {
    let chunks = vec![1; shape.len()];
    let document = format!(
        r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{chunks:?},"dtype":{dtype},"compressor":null,"fill_value":null,
        "order":"C","filters":null}}"#
    );
    ArrayMetadata::parse(document.as_bytes()).unwrap()
}

/// Returns an array without attributes; `dtype` is a NumPy string such as `<f4`.
pub fn plain(dtype: &str, shape: &[u64]) -> Described {
    Described::of_metadata(
        &Key::normalize("group/data").unwrap(),
        &metadata(&format!("{dtype:?}"), shape),
    )
}

fn axis(name: &str, role: Role, units: &str, coordinates: Coordinates, len: u64) -> DescribedAxis {
    let name = Some(name.into());
    let units = Some(units.into());
    DescribedAxis {
        name,
        len,
        role,
        units,
        calendar: None,
        coordinates,
        direction: None,
        labels: Default::default(),
        is_unread: false,
    }
}

/// Returns floats over time, latitude from north to south, and longitude.
pub fn geographic() -> Described {
    let regular = |first, step| Coordinates::Regular { first, step };
    let attributes = r#"{"units":"K","long_name":"Air <2 m>","_FillValue":-9999.0,"valid_min":150,"flags":[1,2]}"#;
    let attributes = json::parse_object(attributes.as_bytes()).unwrap().into();
    Described {
        axes: vec![
            axis(
                "time",
                Role::Time,
                "hours since 2000-01-01 00:00:00",
                regular(0.0, 6.0),
                4,
            ),
            axis("lat", Role::Y, "degrees_north", regular(50.0, -0.5), 6),
            axis("lon", Role::X, "degrees_east", regular(10.0, 0.25), 10),
        ],
        crs: Some(Crs {
            authority: Some("EPSG:4326".into()),
            kind: CrsKind::Geographic,
            ..Crs::default()
        }),
        nodata: Some(MetadataNumber::Float(-9999.0)),
        units: Some("K".into()),
        long_name: Some("Air <2 m>".into()),
        attributes,
        ..plain("<f4", &[4, 6, 10])
    }
}

/// Returns packed big-endian integers over monthly times, four levels, latitude from south to
/// north, and longitude.
pub fn model() -> Described {
    let irregular = |values: &[f64]| Coordinates::Irregular {
        values: values.to_vec(),
    };
    Described {
        name: "sea-surface temperature".into(),
        axes: vec![
            axis(
                "time",
                Role::Time,
                "days since 2001-01-01",
                irregular(&[0.0, 31.0, 59.0]),
                3,
            ),
            axis(
                "level",
                Role::Z,
                "hPa",
                irregular(&[1000.0, 850.0, 500.0, 200.0]),
                4,
            ),
            axis(
                "lat",
                Role::Y,
                "degrees_north",
                irregular(&[-60.5, -10.0, 0.0, 10.0, 60.5]),
                5,
            ),
            axis(
                "lon",
                Role::X,
                "degrees_east",
                Coordinates::Regular {
                    first: 0.1,
                    step: 0.1,
                },
                6,
            ),
        ],
        nodata: Some(MetadataNumber::Int(-32768)),
        scale: Some(0.05),
        offset: Some(260.0),
        units: Some("K".into()),
        ..plain(">i2", &[3, 4, 5, 6])
    }
}

/// Returns bytes over channel, z, y and x at equal steps, as microscopes produce.
pub fn microscopy() -> Described {
    let regular = |step| Coordinates::Regular { first: 0.0, step };
    Described {
        axes: vec![
            DescribedAxis {
                units: None,
                ..axis("c", Role::Other, "", Coordinates::Unknown, 2)
            },
            axis("z", Role::Z, "micrometer", regular(2.0), 3),
            axis("y", Role::Y, "micrometer", regular(0.5), 4),
            axis("x", Role::X, "micrometer", regular(0.5), 5),
        ],
        ..plain("|u1", &[2, 3, 4, 5])
    }
}

/// Returns arrays with hostile metadata: long names, numbers that are not finite, very many items.
pub fn hostile() -> Vec<Described> {
    let strange = [
        f64::NAN,
        f64::INFINITY,
        f64::MIN_POSITIVE,
        f64::MAX,
        -f64::MAX,
        0.0,
    ];
    let long = "\u{1}<&\"'{},é\n".repeat(10_000);
    let mut all = Vec::new();
    for (first, step) in strange
        .iter()
        .flat_map(|first| strange.iter().map(move |step| (*first, *step)))
    {
        let regular = Coordinates::Regular { first, step };
        let irregular = Coordinates::Irregular {
            values: vec![step; 3],
        };
        let named = |role, coordinates, len| axis(&long, role, &long, coordinates, len);
        let most = i32::MAX as u64;
        for axes in [
            vec![
                named(Role::Time, regular.clone(), 3),
                named(Role::Z, regular.clone(), most),
            ],
            vec![
                named(Role::Other, irregular.clone(), 3),
                named(Role::Y, irregular, 3),
                named(Role::X, regular, most),
            ],
        ] {
            let shape: Vec<u64> = axes.iter().map(|axis| axis.len).collect();
            let number = Some(MetadataNumber::Float(first));
            all.push(Described {
                axes,
                name: long.clone(),
                long_name: Some(long.clone()),
                units: Some(long.clone()),
                crs: Some(Crs {
                    wkt: Some(long.clone()),
                    ..Crs::default()
                }),
                nodata: number,
                scale: Some(first),
                offset: Some(step),
                ..plain("<f4", &shape)
            });
        }
    }
    all
}
