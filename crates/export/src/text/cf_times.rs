//! Numbers that CF's units make times (`days since 2000-01-01`), as ISO 8601.

use super::super::calendar::{Moment, TimeScale};
use super::super::describe::is_number;
use super::super::described::{Described, MetadataNumber};
use super::super::number::read_number;
use zarrfs_base::json;
use zarrfs_format::dtype::DType;

/// How the times of an array are written.
pub struct CfTimes<'a> {
    dtype: &'a DType,
    scale: TimeScale,
    /// The factor and the term of packed times.
    packing: Option<(f64, f64)>,
    missing: Option<MetadataNumber>,
    /// Whether a time has a fraction of a second: then all show one.
    has_fractions: bool,
}

impl<'a> CfTimes<'a> {
    /// Returns the times of an array with these values; `None` if its values are no times, or if
    /// one cannot be written as a date. Then all values are written as the numbers that they are.
    pub fn of(array: &'a Described, values: &[u8]) -> Option<Self> {
        let calendar = match array.attributes.get("calendar") {
            // a calendar that is no text is none that is known
            Some(calendar) => json::text(calendar)?,
            None => "standard",
        };
        let dtype = Some(&array.metadata.dtype).filter(|dtype| is_number(dtype))?;
        let scale = TimeScale::parse(array.units.as_deref()?, calendar)?;
        let packing = (array.scale.is_some() || array.offset.is_some())
            .then(|| (array.scale.unwrap_or(1.0), array.offset.unwrap_or(0.0)));
        let mut times = CfTimes {
            dtype,
            scale,
            packing,
            missing: array.nodata,
            has_fractions: false,
        };
        for item in values.chunks_exact(dtype.size().max(1)) {
            let moment = times.moment(item)?;
            times.has_fractions |= moment.is_some_and(|moment| moment.has_fraction());
        }
        Some(times)
    }

    /// Writes the time of an item; `NaT` if it is missing.
    pub fn write(&self, item: &[u8], out: &mut String) {
        match self.moment(item).flatten() {
            Some(moment) => moment.write(self.has_fractions, out),
            None => out.push_str("NaT"),
        }
    }

    /// Returns the time of an item, `Some(None)` if it is missing, and `None` if it has no date.
    fn moment(&self, item: &[u8]) -> Option<Option<Moment>> {
        let number = read_number(self.dtype, item)?;
        // xarray stores NaT so
        let is_nat = number == MetadataNumber::Int(i64::MIN.into());
        if is_nat
            || number.as_f64().is_nan()
            || self.missing.is_some_and(|missing| missing == number)
        {
            return Some(None);
        }
        let moment = match (number, self.packing) {
            (MetadataNumber::Int(number), None) => self.scale.of_int(number),
            (MetadataNumber::Float(number), None) => self.scale.of_float(number),
            (_, Some((scale, offset))) => self.scale.of_float(number.as_f64() * scale + offset),
        };
        moment.map(Some)
    }
}
