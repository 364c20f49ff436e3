//! Descriptors of arrays, and arrays that have none.

use super::super::testing;
use super::*;

#[test]
fn an_array_without_attributes_has_a_short_descriptor() {
    let expected = "DSET ^data.raw
TITLE data
UNDEF -9.99e33
OPTIONS big_endian
XDEF 6 LINEAR 1 1
YDEF 4 LINEAR 1 1
ZDEF 1 LEVELS 0
TDEF 1 LINEAR 00Z01JAN0001 1dy
VARS 1
data 0 -1,40,2 data
ENDVARS
";
    assert_eq!(text(&testing::plain(">u2", &[4, 6])), expected);
}

#[test]
fn latitudes_increase_and_times_are_dates() {
    let expected = "DSET ^data.raw
TITLE Air <2 m>
UNDEF -9999
OPTIONS little_endian yrev
XDEF 10 LINEAR 10 0.25
YDEF 6 LINEAR 47.5 0.5
ZDEF 1 LEVELS 0
TDEF 4 LINEAR 00Z01JAN2000 6hr
VARS 1
data 0 99 Air <2 m> [K]
ENDVARS
";
    assert_eq!(text(&testing::geographic()), expected);
}

fn line(array: &Described, word: &str) -> String {
    text(array)
        .lines()
        .find(|line| line.starts_with(word))
        .unwrap_or_default()
        .to_string()
}

#[test]
fn levels_and_steps_of_months_are_stated() {
    let expected = "DSET ^data.raw
TITLE sea-surface temperature
UNDEF -32768
OPTIONS big_endian
XDEF 6 LINEAR 0.1 0.1
YDEF 5 LEVELS -60.5 -10 0 10 60.5
ZDEF 4 LEVELS 1000 850 500 200
TDEF 3 LINEAR 00Z01JAN2001 1mo
VARS 1
sea_surface_tem 4 -1,40,2,-1 sea-surface temperature [K]
ENDVARS
";
    assert_eq!(
        text(&Described {
            scale: None,
            offset: None,
            ..testing::model()
        }),
        expected
    );
}

#[test]
fn packed_values_have_no_descriptor() {
    let with = |dtype, attributes: &str| {
        let attributes = json::parse_object(attributes.as_bytes()).unwrap();
        let number = |name| attributes.get(name).and_then(json::float);
        let scale = number("scale_factor").filter(|x| *x != 0.0);
        let offset = number("add_offset");
        let nodata = number("_FillValue").map(MetadataNumber::Float);
        can_describe(&Described {
            scale,
            offset,
            nodata,
            attributes: attributes.into(),
            ..testing::plain(dtype, &[4, 6])
        })
    };
    for attributes in [
        "{}",
        r#"{"scale_factor":1,"add_offset":0}"#,
        r#"{"_FillValue":7,"missing_value":7}"#,
        r#"{"_FillValue":7,"missing_value":[7,1e9]}"#,
        r#"{"_Unsigned":"false","units":"K"}"#,
    ] {
        assert!(with("<i2", attributes), "{attributes}");
    }
    for attributes in [
        r#"{"scale_factor":0.5}"#,
        r#"{"scale_factor":0}"#,
        r#"{"scale_factor":"half"}"#,
        r#"{"add_offset":273.15}"#,
        r#"{"add_offset":null}"#,
        r#"{"_FillValue":7,"missing_value":8}"#,
        r#"{"_FillValue":7,"missing_value":[7,8]}"#,
    ] {
        assert!(!with("<i2", attributes), "{attributes}");
    }
    assert!(!can_describe(&testing::model()), "packed");
}

#[test]
fn times_are_dates_at_even_steps() {
    let tdef = |units: &str, calendar: Option<&str>, coordinates: Coordinates| {
        let mut array = testing::geographic();
        array.axes[0].units = Some(units.into());
        array.axes[0].calendar = calendar.map(str::to_string);
        array.axes[0].coordinates = coordinates;
        assert_eq!(can_describe(&array), !text(&array).is_empty());
        line(&array, "TDEF")
    };
    let regular = |first, step| Coordinates::Regular { first, step };
    let listed = |values: &[f64]| Coordinates::Irregular {
        values: values.to_vec(),
    };
    let days = "days since 1999-12-31 12:30";
    let seconds = "seconds since 2000-01-01";
    for (units, calendar, coordinates, expected) in [
        (days, None, regular(1.0, 1.0 / 24.0), "12:30Z01JAN2000 1hr"),
        (days, None, regular(1.0, 5.0), "12:30Z01JAN2000 5dy"),
        (
            days,
            Some("noleap"),
            regular(1.0, 5.0),
            "12:30Z01JAN2000 5dy",
        ),
        (seconds, None, regular(0.0, 5400.0), "00Z01JAN2000 90mn"),
        (
            "seconds since 2000-01-01 00:00:30",
            None,
            regular(30.0, 60.0),
            "00:01Z01JAN2000 1mn",
        ),
        (
            "hours since 1-1-1",
            None,
            regular(17_522_904.0, 6.0),
            "00Z01JAN2000 6hr",
        ),
        (
            "days since 1500-01-01",
            Some("proleptic_gregorian"),
            regular(0.0, 1.0),
            "00Z01JAN1500 1dy",
        ),
        (
            "days since 2001-01-01",
            None,
            listed(&[0.0, 31.0, 59.0, 90.0]),
            "00Z01JAN2001 1mo",
        ),
        (
            "days since 2000-02-03",
            None,
            listed(&[0.0, 366.0, 731.0, 1096.0]),
            "00Z03FEB2000 1yr",
        ),
    ] {
        assert_eq!(
            tdef(units, calendar, coordinates),
            format!("TDEF 4 LINEAR {expected}"),
            "{units}"
        );
    }
    for (units, calendar, coordinates) in [
        (days, Some("360_day"), regular(1.0, 5.0)),
        (days, Some("julian"), regular(1.0, 5.0)),
        (days, Some("all_leap"), regular(1.0, 5.0)),
        // Julian dates, which the format doesn't know
        ("days since 1500-01-01", None, regular(0.0, 1.0)),
        (seconds, None, regular(0.0, 1.0)),
        (
            "seconds since 2000-01-01 00:00:30",
            None,
            regular(0.0, 60.0),
        ),
        // a step that is no whole number of minutes
        ("minutes since 2000-01-01", None, regular(0.0, 1.2)),
        ("K", None, regular(1.0, 5.0)),
        // UDUNITS counts a month as 30.44 days
        ("months since 2000-01-01", None, regular(3.0, 12.0)),
        (days, None, regular(1.0, -5.0)),
        (days, None, Coordinates::Unknown),
        (days, None, listed(&[0.0, 1.0, 40.0, 80.0])),
        (days, None, listed(&[0.0, 1.0, 1.0, 2.0])),
        // the middles of months
        (
            "days since 2001-01-01",
            None,
            listed(&[15.5, 45.0, 74.5, 105.0]),
        ),
    ] {
        assert_eq!(
            tdef(units, calendar, coordinates),
            "",
            "{units} {calendar:?}"
        );
    }
}

#[test]
fn a_single_time_has_a_date() {
    let mut array = testing::geographic();
    array.axes[0] = DescribedAxis {
        len: 1,
        coordinates: Coordinates::Irregular { values: vec![30.0] },
        ..array.axes[0].clone()
    };
    assert_eq!(line(&array, "TDEF"), "TDEF 1 LINEAR 06Z02JAN2000 1dy");
    array.axes[0].calendar = Some("360_day".into());
    assert!(!can_describe(&array));
}

#[test]
fn a_calendar_without_leap_days_is_an_option() {
    let mut array = testing::geographic();
    array.axes[0].calendar = Some("noleap".into());
    assert_eq!(
        line(&array, "OPTIONS"),
        "OPTIONS little_endian yrev 365_day_calendar"
    );
}

#[test]
fn dimensions_without_coordinates_are_counted() {
    assert_eq!(
        line(&testing::plain("<f4", &[2, 3, 4, 5]), "EDEF"),
        "EDEF 2 NAMES m1 m2"
    );
    assert_eq!(
        line(&testing::plain("<f4", &[3, 4, 5]), "ZDEF"),
        "ZDEF 3 LINEAR 1 1"
    );
    assert_eq!(
        line(&testing::plain("<f4", &[3, 4, 5]), "TDEF"),
        "TDEF 1 LINEAR 00Z01JAN0001 1dy"
    );
    let mut series = testing::plain("<f4", &[3]);
    series.axes[0].role = Role::Time;
    assert!(!can_describe(&series), "there are no dates to begin with");
    // coordinates exist, but can't be read
    let mut array = testing::plain("<f4", &[3, 4]);
    array.axes[1].is_unread = true;
    assert!(!can_describe(&array));
}

/// A descriptor states coordinates as they are, or does not exist.
#[test]
fn inexpressible_coordinates_have_no_descriptor() {
    let listed = |values: &[f64]| Coordinates::Irregular {
        values: values.to_vec(),
    };
    let changed = |change: &dyn Fn(&mut Described)| {
        let mut array = testing::geographic();
        change(&mut array);
        can_describe(&array)
    };
    assert!(changed(&|_| {}));
    assert!(changed(&|array| array.axes[2].units = None));
    assert!(changed(
        &|array| array.axes[2].units = Some("degrees".into())
    ));
    assert!(
        !changed(&|array| array.axes.swap(1, 2)),
        "longitudes before latitudes"
    );
    assert!(!changed(
        &|array| array.axes[1].coordinates = listed(&[60.0, 50.0, 10.0, 20.0, -1.0, -60.0])
    ));
    assert!(!changed(
        &|array| array.axes[1].coordinates = listed(&[60.0, 50.0, f64::NAN, 0.0, -1.0, -60.0])
    ));
    let west = Coordinates::Regular {
        first: 10.0,
        step: -0.25,
    };
    assert!(!changed(&|array| array.axes[2].coordinates = west.clone()));
    assert!(
        !changed(&|array| array.axes[2].units = Some("m".into())),
        "projected"
    );
    let rotated = |array: &mut Described| {
        array.axes[2].units = Some("degrees".into());
        array.axes[2].name = Some("rlon".into());
    };
    assert!(!changed(&rotated));
    assert!(
        !changed(&|array| array.crs = Some(Default::default())),
        "projected"
    );
    assert!(!changed(&|array| array.axes[2].role = Role::Other));
    assert!(!can_describe(&testing::microscopy()), "micrometers");
    let mut array = testing::geographic();
    array.axes[1].coordinates = listed(&[60.0, 50.0, 10.0, 0.0, -1.0, -60.0]);
    assert_eq!(line(&array, "YDEF"), "YDEF 6 LEVELS -60 -1 0 10 50 60");
    assert!(line(&array, "OPTIONS").ends_with("yrev"));
}

#[test]
fn missing_values_are_numbers_or_undefined() {
    let undef = |dtype, nodata| {
        line(
            &Described {
                nodata,
                ..testing::plain(dtype, &[1])
            },
            "UNDEF",
        )
    };
    assert_eq!(
        undef("<f4", Some(MetadataNumber::Float(1e20))),
        "UNDEF 1e20"
    );
    assert_eq!(
        undef("<f4", Some(MetadataNumber::Float(f64::NAN))),
        "UNDEF -9.99e33"
    );
    assert_eq!(undef("|u1", Some(MetadataNumber::Int(255))), "UNDEF 255");
    assert_eq!(
        undef("|u1", Some(MetadataNumber::Int(-1))),
        "UNDEF -9.99e33"
    );
}

#[test]
fn names_are_short_and_plain() {
    for (given, expected) in [
        ("2m Temp.", "v2m_temp_"),
        ("Größe", "gr__e"),
        ("a_name_that_is_long", "a_name_that_is_"),
    ] {
        assert_eq!(name(given), expected);
    }
}

#[test]
fn unsupported_types_and_shapes_are_refused() {
    for dtype in ["|i1", "<u4", "<i8", "<f8", "<f2", "<c8", "|S3", "<M8[s]"] {
        assert!(
            !fits(&testing::metadata(&format!("{dtype:?}"), &[4, 6])),
            "{dtype}"
        );
    }
    for shape in [&[] as &[u64], &[4, 0], &[1; 5], &[(1 << 20) + 1, 1, 1, 1]] {
        assert!(!fits(&testing::metadata("\"<f4\"", shape)), "{shape:?}");
    }
}
