//! The type, size and byte order in which a file of another program holds an array's items. This
//! module knows nothing of files.

use super::number::{NumberKind, NumberType};
use super::packing::Packing;
use std::sync::Arc;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_format::metadata::ArrayMetadata;

/// How a file holds each item of flat bytes. An item may take another number of bytes in the file
/// than in the array.
#[derive(Clone, Debug, PartialEq)]
pub enum ItemForm {
    /// Unchanged.
    AsStored,
    /// In the other byte order. The number is the size of an item in bytes.
    Reversed(usize),
    /// Integers as big-endian floats of 64 bits, where these hold the same values: CDF-2 lacks most
    /// types of integers.
    Double(StoredInteger),
    /// UCS-4 text as UTF-8 in as many bytes, padded with NUL.
    Utf8 {
        /// The number of bytes of an item.
        size: usize,
        /// The byte order of the stored characters.
        is_big_endian: bool,
    },
    /// Floats of two bytes as floats of four.
    Single {
        /// The byte order of the stored floats.
        stored_is_big_endian: bool,
        /// The byte order in the file.
        shown_is_big_endian: bool,
    },
    /// As physical values.
    Unpacked(Arc<Packing>),
}

/// A type of integers in an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoredInteger {
    /// The type.
    pub number: NumberType,
    /// The array's fill value, which `NC_FILL_DOUBLE` stands for when it is written.
    pub fill: i128,
}

impl StoredInteger {
    /// Returns the type of an array's items; `None` if they are no numbers.
    pub fn of(metadata: &ArrayMetadata) -> Option<Self> {
        let number = NumberType::of(&metadata.dtype)?;
        let mut item = metadata.fill.clone().unwrap_or_default();
        // trailing zero bytes are not stored
        item.resize(number.size, 0);
        let fill = number.integer(number.load(&item));
        Some(StoredInteger { number, fill })
    }
}

/// `NC_FILL_DOUBLE` in `netcdf.h`, which netCDF-C writes in place of values that are not written
/// yet.
const FILL: f64 = 9.969_209_968_386_869e36;

/// Returns the integer that a float is; `None` if it is none.
fn integer(float: f64) -> Option<i128> {
    let number = float as i128;
    (number as f64 == float && number.unsigned_abs() <= 1 << 64).then_some(number)
}

impl ItemForm {
    /// Returns the number of bytes of the array that must be converted together.
    pub fn stored_item(&self) -> usize {
        match *self {
            ItemForm::AsStored => 1,
            ItemForm::Reversed(size) | ItemForm::Utf8 { size, .. } => size.max(1),
            ItemForm::Single { .. } => 2,
            ItemForm::Double(stored) => stored.number.size,
            ItemForm::Unpacked(ref packing) => packing.stored_size(),
        }
    }

    /// Returns the number of bytes that they become in the file.
    pub fn shown_item(&self) -> usize {
        match self {
            ItemForm::Double(_) => size_of::<f64>(),
            ItemForm::Single { .. } => 4,
            ItemForm::Unpacked(packing) => packing.shown_size(),
            same => same.stored_item(),
        }
    }

    /// Returns the number of bytes in the file of an array of `stored` bytes; `None` if that is
    /// more than 64 bits hold.
    pub fn shown_size(&self, stored: u64) -> Option<u64> {
        (stored / self.stored_item() as u64).checked_mul(self.shown_item() as u64)
    }

    /// Returns whether whole items alone can be written.
    pub fn takes_whole_items(&self) -> bool {
        matches!(self, ItemForm::Unpacked(_))
    }

    /// Returns whether [`ItemForm::show`] can convert `bytes`, which are whole stored items.
    pub fn can_show(&self, bytes: &[u8]) -> bool {
        match self {
            // tests a block at a time: the whole array was read already, a second copy would double
            // its memory
            ItemForm::Double(_) => {
                let block = self.stored_item() << 12;
                bytes
                    .chunks(block)
                    .all(|block| self.show(&mut block.to_vec()).is_ok())
            }
            _ => true,
        }
    }

    /// Converts `bytes`, whole items as the array holds them, into the items that the file shows.
    ///
    /// # Errors
    ///
    /// ESTALE for an integer that no double is equal to. `netcdf` shows doubles only if all values
    /// fit, so the array has changed since the file was opened.
    pub fn show(&self, bytes: &mut Vec<u8>) -> Result<()> {
        match *self {
            ItemForm::AsStored => {}
            ItemForm::Reversed(size) => bytes
                .chunks_exact_mut(size.max(1))
                .for_each(<[u8]>::reverse),
            ItemForm::Double(StoredInteger { number: stored, .. }) => {
                let mut out = Vec::with_capacity(bytes.len() / stored.size * size_of::<f64>());
                for item in bytes.chunks_exact(stored.size) {
                    let number = stored.integer(stored.load(item));
                    let float = number as f64;
                    if float as i128 != number {
                        let why =
                            format!("{number} can't be shown as a double: open the file again");
                        return Err(Error::new(Kind::System(libc::ESTALE), why));
                    }
                    out.extend(float.to_be_bytes());
                }
                *bytes = out;
            }
            ItemForm::Utf8 {
                size,
                is_big_endian,
            } => {
                bytes
                    .chunks_exact_mut(size.max(1))
                    .for_each(|item| show_text(item, is_big_endian));
            }
            ItemForm::Single {
                stored_is_big_endian,
                shown_is_big_endian,
            } => {
                let halves = NumberType::of_floats(2, stored_is_big_endian);
                let singles = NumberType::of_floats(4, shown_is_big_endian);
                let mut out = Vec::with_capacity(2 * bytes.len());
                for item in bytes.as_chunks::<2>().0 {
                    let float = halves.float(halves.load(item)) as f32;
                    singles.store(float.to_bits().into(), &mut out);
                }
                *bytes = out;
            }
            ItemForm::Unpacked(ref packing) => *bytes = packing.unpack(bytes),
        }
        Ok(())
    }

    /// Converts `bytes`, whole items as the file shows them, into the items that the array holds.
    ///
    /// # Errors
    ///
    /// EINVAL for a number that is not in the array's type or that its packing cannot hold, and for
    /// text that is not UTF-8 or has too many characters.
    pub fn store(&self, bytes: &mut Vec<u8>) -> Result<()> {
        match *self {
            ItemForm::AsStored | ItemForm::Reversed(_) => self.show(bytes),
            ItemForm::Double(StoredInteger {
                number: stored,
                fill,
            }) => {
                let items = bytes.as_chunks::<8>().0;
                let mut out = Vec::with_capacity(items.len() * stored.size);
                for item in items {
                    let float = f64::from_be_bytes(*item);
                    let number = if float == FILL {
                        Some(fill)
                    } else {
                        integer(float)
                    };
                    let bits = number.and_then(|number| stored.integer_bits(number));
                    let bits = bits.ok_or_else(|| not_integer(stored, float))?;
                    stored.store(bits, &mut out);
                }
                *bytes = out;
                Ok(())
            }
            ItemForm::Utf8 {
                size,
                is_big_endian,
            } => bytes
                .chunks_exact_mut(size.max(1))
                .try_for_each(|item| store_text(item, is_big_endian)),
            ItemForm::Single {
                stored_is_big_endian,
                shown_is_big_endian,
            } => {
                let halves = NumberType::of_floats(2, stored_is_big_endian);
                let singles = NumberType::of_floats(4, shown_is_big_endian);
                let mut out = Vec::with_capacity(bytes.len() / 2);
                for item in bytes.as_chunks::<4>().0 {
                    let float = f32::from_bits(singles.load(item) as u32);
                    let half = half::f16::from_f32(float);
                    if half.to_f32() != float && !float.is_nan() {
                        let why =
                            format!("{float} can't be stored: no float of two bytes is equal");
                        return Err(Error::invalid(why));
                    }
                    halves.store(half.to_bits().into(), &mut out);
                }
                *bytes = out;
                Ok(())
            }
            ItemForm::Unpacked(ref packing) => {
                *bytes = packing.pack(bytes)?;
                Ok(())
            }
        }
    }
}

fn not_integer(stored: NumberType, number: f64) -> Error {
    let sign = if stored.kind == NumberKind::Signed {
        ""
    } else {
        "unsigned "
    };
    let size = stored.size;
    Error::invalid(format!(
        "{number} can't be stored: the array holds {sign}integers of {size} bytes"
    ))
}

/// Converts UCS-4 to UTF-8, which is never longer. What is no character, such as half of a
/// surrogate pair, becomes U+FFFD.
fn show_text(item: &mut [u8], is_big_endian: bool) {
    let mut at = 0;
    for from in (0..item.len() / 4 * 4).step_by(4) {
        let Ok(code) = <[u8; 4]>::try_from(&item[from..from + 4]) else {
            break;
        };
        let code = if is_big_endian {
            u32::from_be_bytes(code)
        } else {
            u32::from_le_bytes(code)
        };
        let text = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        at += text.encode_utf8(&mut item[at..from + 4]).len();
    }
    item[at..].fill(0);
}

/// Converts UTF-8 to UCS-4.
fn store_text(item: &mut [u8], is_big_endian: bool) -> Result<()> {
    let len = item.len() - item.iter().rev().take_while(|byte| **byte == 0).count();
    let text = std::str::from_utf8(&item[..len])
        .map_err(|_| Error::invalid("the text is not UTF-8"))?
        .to_owned();
    let count = text.chars().count();
    let most = item.len() / 4;
    if count > most {
        return Err(Error::invalid(format!(
            "{text:?} has {count} characters, the array holds {most}"
        )));
    }
    item.fill(0);
    for (to, code) in item.chunks_exact_mut(4).zip(text.chars()) {
        to.copy_from_slice(&if is_big_endian {
            u32::from(code).to_be_bytes()
        } else {
            u32::from(code).to_le_bytes()
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(size: usize, is_signed: bool, is_big_endian: bool) -> StoredInteger {
        let kind = if is_signed {
            NumberKind::Signed
        } else {
            NumberKind::Unsigned
        };
        let number = NumberType {
            kind,
            size,
            is_big_endian,
        };
        StoredInteger { number, fill: 7 }
    }

    #[test]
    fn shown_items_are_stored_unchanged() {
        for form in [
            ItemForm::AsStored,
            ItemForm::Reversed(4),
            ItemForm::Reversed(8),
        ] {
            let mut bytes: Vec<u8> = (0..16).collect();
            form.show(&mut bytes).unwrap();
            assert_eq!(bytes[0], form.shown_item() as u8 - 1);
            form.store(&mut bytes).unwrap();
            assert_eq!(bytes, (0..16).collect::<Vec<u8>>());
        }
        for (n, is_big_endian) in [
            (0i64, true),
            (-7, false),
            (1 << 53, true),
            (i64::MIN, false),
            (3 << 60, true),
        ] {
            let form = ItemForm::Double(stored(8, true, is_big_endian));
            let integer = if is_big_endian {
                n.to_be_bytes()
            } else {
                n.to_le_bytes()
            };
            let mut bytes = integer.to_vec();
            form.show(&mut bytes).unwrap();
            assert_eq!(bytes, (n as f64).to_be_bytes());
            form.store(&mut bytes).unwrap();
            assert_eq!(bytes, integer);
        }
    }

    #[test]
    fn items_take_another_size_in_the_file() {
        for (integers, bytes, expected) in [
            (stored(2, false, true), &[255, 254][..], 65_534f64),
            (stored(2, true, false), &[254, 255], -2.0),
            (stored(4, false, false), &[255; 4], f64::from(u32::MAX)),
            (
                stored(8, false, true),
                &(u64::MAX << 11).to_be_bytes(),
                (u64::MAX << 11) as f64,
            ),
        ] {
            let form = ItemForm::Double(integers);
            let mut converted = bytes.to_vec();
            form.show(&mut converted).unwrap();
            assert_eq!(converted, expected.to_be_bytes());
            assert_eq!(form.shown_size(bytes.len() as u64), Some(8));
            form.store(&mut converted).unwrap();
            assert_eq!(converted, bytes);
            let mut converted = FILL.to_be_bytes().to_vec();
            form.store(&mut converted).unwrap();
            assert_eq!(integers.number.integer(integers.number.load(&converted)), 7);
        }
        let form = ItemForm::Double(stored(4, false, false));
        assert_eq!(
            (
                form.shown_size(u64::MAX - 3),
                form.stored_item(),
                form.shown_item()
            ),
            (None, 4, 8)
        );
    }

    #[test]
    fn inexact_values_are_refused() {
        let form = ItemForm::Double(stored(8, true, true));
        for n in [(1i64 << 53) + 1, i64::MAX] {
            assert_eq!(
                form.show(&mut n.to_be_bytes().to_vec())
                    .unwrap_err()
                    .errno(),
                libc::ESTALE
            );
            assert!(!form.can_show(&n.to_be_bytes()) && form.can_show(&(n / 2 + 1).to_be_bytes()));
        }
        for x in [0.5, f64::NAN, f64::INFINITY, 9.3e18, -9.3e18] {
            assert_eq!(
                form.store(&mut x.to_be_bytes().to_vec())
                    .unwrap_err()
                    .errno(),
                libc::EINVAL,
                "{x}"
            );
        }
        let form = ItemForm::Double(stored(2, false, true));
        let e = form.store(&mut (-2f64).to_be_bytes().to_vec()).unwrap_err();
        assert_eq!(
            e.message(),
            "-2 can't be stored: the array holds unsigned integers of 2 bytes"
        );
        assert!(form.store(&mut 65536f64.to_be_bytes().to_vec()).is_err());
    }

    #[test]
    fn text_is_utf_8_in_the_file() {
        for is_big_endian in [false, true] {
            let form = ItemForm::Utf8 {
                size: 12,
                is_big_endian,
            };
            let ucs4 = |text: &str| -> Vec<u8> {
                let codes = text.chars().map(u32::from);
                codes
                    .flat_map(|code| {
                        if is_big_endian {
                            code.to_be_bytes()
                        } else {
                            code.to_le_bytes()
                        }
                    })
                    .collect()
            };
            let mut bytes = ucs4("ab\0äö𝄞\0\0\0𝄞𝄞𝄞");
            let stored = bytes.clone();
            form.show(&mut bytes).unwrap();
            let expected = [
                "ab\0\0\0\0\0\0\0\0\0\0",
                "äö𝄞\0\0\0\0",
                &"\0".repeat(12),
                "𝄞𝄞𝄞",
            ]
            .concat();
            assert_eq!(bytes, expected.as_bytes());
            form.store(&mut bytes).unwrap();
            assert_eq!(bytes, stored);
            for bad in [
                "abcd\0\0\0\0\0\0\0\0".as_bytes(),
                b"\xc3\0\0\0\0\0\0\0\0\0\0\0",
                b"\xff12345678901",
            ] {
                assert_eq!(
                    form.store(&mut bad.to_vec()).unwrap_err().errno(),
                    libc::EINVAL
                );
            }
            let half = 0xd800u32;
            let mut bytes = if is_big_endian {
                half.to_be_bytes()
            } else {
                half.to_le_bytes()
            }
            .repeat(3);
            form.show(&mut bytes).unwrap();
            assert_eq!(bytes, "\u{fffd}\u{fffd}\u{fffd}\0\0\0".as_bytes());
        }
    }
}
