//! The tags for the number of pixels per unit of length.

use super::super::describe::{attribute_integer, attribute_number};
use super::{TagValue, Tags};
use zarrfs_base::json::{Map, Value};

/// XResolution.
pub const X: u16 = 282;
/// YResolution.
pub const Y: u16 = 283;
/// ResolutionUnit.
pub const UNIT: u16 = 296;

/// The unit is not known to TIFF.
pub const NO_UNIT: u16 = 1;
/// The unit is a centimeter.
pub const CENTIMETER: u16 = 3;

/// The attributes in which GDAL and rioxarray keep the resolution.
pub const NAMES: [(u16, &str); 3] = [
    (X, "TIFFTAG_XRESOLUTION"),
    (Y, "TIFFTAG_YRESOLUTION"),
    (UNIT, "TIFFTAG_RESOLUTIONUNIT"),
];

/// Maximum relative error of a ratio with a power of ten.
const TOLERANCE: f64 = 1e-6;

/// Returns the reciprocal of the step as a ratio of 32-bit numbers: of a power of ten if one is
/// exact enough, or else of the largest numbers. Returns `None` if the step is too large or too
/// small.
pub fn for_each_unit(step: f64) -> Option<TagValue> {
    let largest = f64::from(u32::MAX);
    let powers = (0..10u32).rev().map(|digits| f64::from(10u32.pow(digits)));
    let ratio = powers
        .map(|power| (power, step * power))
        .find(|(_, under)| under.round() <= largest);
    let is_near = |(_, under): &(f64, f64)| (under.round() - under).abs() <= TOLERANCE * under;
    let (over, under) = ratio.filter(is_near).unwrap_or_else(|| {
        let under = (largest * step).floor();
        (under / step, under)
    });
    let [over, under] = [over.round(), under.round()];
    let is_ratio = [over, under]
        .iter()
        .all(|number| (1.0..=largest).contains(number));
    is_ratio.then_some(TagValue::Rational(over as u32, under as u32))
}

/// Adds the resolution that attributes state, unless the axes have given one.
pub fn stated(attributes: &Map<String, Value>, tags: &mut Tags) {
    if tags.contains_key(&X) {
        return;
    }
    for (tag, name) in NAMES {
        let value = match attributes.get(name) {
            Some(unit) if tag == UNIT => attribute_integer(unit)
                .and_then(|unit| u16::try_from(unit).ok())
                .map(|unit| TagValue::Short(vec![unit])),
            _ => attribute_number(attributes, name).and_then(ratio),
        };
        if let Some(value) = value {
            tags.insert(tag, value);
        }
    }
}

/// Returns a positive number as a ratio, an exact one if its digits permit.
fn ratio(number: f64) -> Option<TagValue> {
    let exact = (0..10).map(|digits| 10u32.pow(digits)).find_map(|under| {
        let over = number * f64::from(under);
        let is_exact = over.fract() == 0.0 && over >= 1.0 && over <= u32::MAX.into();
        is_exact.then_some(TagValue::Rational(over as u32, under))
    });
    exact.or_else(|| for_each_unit(1.0 / number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stated_resolution_is_exact() {
        assert_eq!(ratio(72.0), Some(TagValue::Rational(72, 1)));
        assert_eq!(ratio(300.5), Some(TagValue::Rational(3005, 10)));
        assert_eq!(
            ratio(1.0 / 3.0),
            Some(TagValue::Rational(1_000_000_000, 3_000_000_000))
        );
        for number in [0.0, -1.0, f64::NAN] {
            assert_eq!(ratio(number), None, "{number}");
        }
    }

    #[test]
    fn ratios() {
        assert_eq!(
            for_each_unit(0.5),
            Some(TagValue::Rational(1_000_000_000, 500_000_000))
        );
        assert_eq!(
            for_each_unit(2.5e-5),
            Some(TagValue::Rational(1_000_000_000, 25_000))
        );
        assert_eq!(
            for_each_unit(4e9),
            Some(TagValue::Rational(1, 4_000_000_000))
        );
        assert_eq!(
            for_each_unit(6.5e-9),
            Some(TagValue::Rational(4_153_846_154, 27))
        );
        for step in [1e10, 1e-10, 0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(for_each_unit(step), None, "{step}");
        }
    }
}
