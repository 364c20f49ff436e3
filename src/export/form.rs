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
    /// Integers as big-endian numbers of a type that holds the same values: netCDF-3 lacks most
    /// types of integers.
    Widened {
        /// The type of the array.
        stored: StoredInteger,
        /// The type of the file.
        shown: ShownNumber,
    },
    /// UCS-4 text as UTF-8 in as many bytes, padded with NUL.
    Utf8 {
        /// The number of bytes of an item.
        size: usize,
        /// The byte order of the stored characters.
        is_big_endian: bool,
    },
    /// Floats of two bytes as floats of four, in the same byte order.
    Single {
        /// The byte order.
        is_big_endian: bool,
    },
    /// As physical values.
    Unpacked(Arc<Packing>),
}

/// A type of integers in an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoredInteger {
    /// The type.
    pub number: NumberType,
    /// The array's fill value, which netCDF's default fill value of the shown type stands for when
    /// it is written.
    pub fill: i128,
}

/// A type of numbers in netCDF-3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownNumber {
    /// Signed integers of 16 bits.
    Short,
    /// Signed integers of 32 bits.
    Int,
    /// Floats of 64 bits.
    Double,
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

impl ShownNumber {
    /// Returns the type of the items in the file.
    fn number(self) -> NumberType {
        let (kind, size) = match self {
            ShownNumber::Short => (NumberKind::Signed, 2),
            ShownNumber::Int => (NumberKind::Signed, 4),
            ShownNumber::Double => (NumberKind::Float, 8),
        };
        NumberType {
            kind,
            size,
            is_big_endian: true,
        }
    }

    /// Returns the number of bytes.
    pub fn size(self) -> usize {
        self.number().size
    }

    /// Appends a number in the file's byte order; `None` if the type does not hold it exactly.
    fn write(self, number: i128, out: &mut Vec<u8>) -> Option<()> {
        let bits = if self == ShownNumber::Double {
            let shown = number as f64;
            (shown as i128 == number).then_some(shown.to_bits())
        } else {
            self.number().integer_bits(number)
        };
        self.number().store(bits?, out);
        Some(())
    }

    /// Reads an item of the file; `None` if it is not an integer.
    fn read(self, item: &[u8]) -> Option<i128> {
        let bits = self.number().load(item);
        if self != ShownNumber::Double {
            return Some(self.number().integer(bits));
        }
        let shown = f64::from_bits(bits);
        let number = shown as i128;
        (number as f64 == shown && number.unsigned_abs() <= 1 << 64).then_some(number)
    }

    /// Returns whether the item is netCDF's default fill value of the type: `NC_FILL_SHORT`,
    /// `NC_FILL_INT` and `NC_FILL_DOUBLE` in `netcdf.h`.
    fn is_default_fill(self, item: &[u8]) -> bool {
        match self {
            ShownNumber::Short => item == (-32767i16).to_be_bytes(),
            ShownNumber::Int => item == (-2_147_483_647i32).to_be_bytes(),
            ShownNumber::Double => item == 9.969_209_968_386_869e36f64.to_be_bytes(),
        }
    }
}

impl ItemForm {
    /// Returns the number of bytes of the array that must be converted together.
    pub fn stored_item(&self) -> usize {
        match *self {
            ItemForm::AsStored => 1,
            ItemForm::Reversed(size) | ItemForm::Utf8 { size, .. } => size.max(1),
            ItemForm::Single { .. } => 2,
            ItemForm::Widened { stored, .. } => stored.number.size,
            ItemForm::Unpacked(ref packing) => packing.stored_size(),
        }
    }

    /// Returns the number of bytes that they become in the file.
    pub fn shown_item(&self) -> usize {
        match self {
            ItemForm::Widened { shown, .. } => shown.size(),
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
            ItemForm::Widened { .. } => {
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
    /// ESTALE for an integer that the shown type does not hold. `netcdf` chooses a type only if all
    /// values fit, so the array has changed since the file was opened.
    pub fn show(&self, bytes: &mut Vec<u8>) -> Result<()> {
        match *self {
            ItemForm::AsStored => {}
            ItemForm::Reversed(size) => bytes
                .chunks_exact_mut(size.max(1))
                .for_each(<[u8]>::reverse),
            ItemForm::Widened { stored, shown } => {
                let StoredInteger {
                    number: integer, ..
                } = stored;
                let mut out = Vec::with_capacity(bytes.len() / integer.size * shown.size());
                for item in bytes.chunks_exact(integer.size) {
                    let number = integer.integer(integer.load(item));
                    shown.write(number, &mut out).ok_or_else(|| {
                        let why =
                            format!("{number} can't be shown as a double: open the file again");
                        Error::new(Kind::System(libc::ESTALE), why)
                    })?;
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
            ItemForm::Single { is_big_endian } => {
                let (halves, singles) = float_types(is_big_endian);
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
            ItemForm::Widened { stored, shown } => {
                let mut out = Vec::with_capacity(bytes.len() / shown.size() * stored.number.size);
                for item in bytes.chunks_exact(shown.size()) {
                    let number = if shown.is_default_fill(item) {
                        Some(stored.fill)
                    } else {
                        shown.read(item)
                    };
                    let bits = number.and_then(|number| stored.number.integer_bits(number));
                    let bits = bits.ok_or_else(|| not_integer(stored.number, shown, item))?;
                    stored.number.store(bits, &mut out);
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
            ItemForm::Single { is_big_endian } => {
                let (halves, singles) = float_types(is_big_endian);
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

/// Returns the types of floats of two and of four bytes.
fn float_types(is_big_endian: bool) -> (NumberType, NumberType) {
    let of_size = |size| NumberType {
        kind: NumberKind::Float,
        size,
        is_big_endian,
    };
    (of_size(2), of_size(4))
}

fn not_integer(stored: NumberType, shown: ShownNumber, item: &[u8]) -> Error {
    let number = shown.number().float(shown.number().load(item));
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

    fn integer(size: usize, is_signed: bool, is_big_endian: bool) -> StoredInteger {
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
            let form = ItemForm::Widened {
                stored: integer(8, true, is_big_endian),
                shown: ShownNumber::Double,
            };
            let stored = if is_big_endian {
                n.to_be_bytes()
            } else {
                n.to_le_bytes()
            };
            let mut bytes = stored.to_vec();
            form.show(&mut bytes).unwrap();
            assert_eq!(bytes, (n as f64).to_be_bytes());
            form.store(&mut bytes).unwrap();
            assert_eq!(bytes, stored);
        }
    }

    #[test]
    fn items_take_another_size_in_the_file() {
        let check = |stored: StoredInteger, shown, bytes: &[u8], expected: &[u8], fill: &[u8]| {
            let form = ItemForm::Widened { stored, shown };
            let mut converted = bytes.to_vec();
            form.show(&mut converted).unwrap();
            assert_eq!(converted, expected);
            assert_eq!(
                form.shown_size(bytes.len() as u64),
                Some(expected.len() as u64)
            );
            form.store(&mut converted).unwrap();
            assert_eq!(converted, bytes);
            // what netCDF-C writes in place of values that are not written yet
            let mut converted = fill.to_vec();
            form.store(&mut converted).unwrap();
            assert_eq!(stored.number.integer(stored.number.load(&converted)), 7);
        };
        check(
            integer(1, false, false),
            ShownNumber::Short,
            &[0, 255],
            &[0, 0, 0, 255],
            &[0x80, 1],
        );
        check(
            integer(2, false, true),
            ShownNumber::Int,
            &[255, 254],
            &[0, 0, 255, 254],
            &[0x80, 0, 0, 1],
        );
        check(
            integer(2, false, false),
            ShownNumber::Int,
            &[255, 254],
            &[0, 0, 254, 255],
            &[0x80, 0, 0, 1],
        );
        let fill = 9.969_209_968_386_869e36f64.to_be_bytes();
        check(
            integer(4, false, false),
            ShownNumber::Double,
            &[255; 4],
            &f64::from(u32::MAX).to_be_bytes(),
            &fill,
        );
        let most = u64::MAX << 11;
        check(
            integer(8, false, true),
            ShownNumber::Double,
            &most.to_be_bytes(),
            &(most as f64).to_be_bytes(),
            &fill,
        );
        let form = ItemForm::Widened {
            stored: integer(4, false, false),
            shown: ShownNumber::Double,
        };
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
        let form = ItemForm::Widened {
            stored: integer(8, true, true),
            shown: ShownNumber::Double,
        };
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
        let form = ItemForm::Widened {
            stored: integer(2, false, true),
            shown: ShownNumber::Int,
        };
        let e = form.store(&mut (-2i32).to_be_bytes().to_vec()).unwrap_err();
        assert_eq!(
            e.message(),
            "-2 can't be stored: the array holds unsigned integers of 2 bytes"
        );
        assert!(form.store(&mut 65536i32.to_be_bytes().to_vec()).is_err());
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
