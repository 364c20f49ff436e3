//! The byte order and type in which a file of another program holds an array's items. This module knows nothing of
//! files.

use super::packing::Packing;
use crate::error::{Error, Kind, Result};
use std::ops::Range;
use std::sync::Arc;

/// How a file holds each item of flat bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum ItemForm {
    /// Unchanged.
    AsStored,
    /// In the other byte order; the number of bytes of an item.
    Reversed(usize),
    /// Integers of 8 bytes as big-endian doubles of the same value: netCDF-3 has no such integers.
    Doubles {
        /// The byte order of the integers.
        big_endian: bool,
    },
    /// As physical values, which may be longer than the items.
    Unpacked(Arc<Packing>),
}

impl ItemForm {
    /// Returns the number of bytes of the file that must be converted together.
    pub fn item(&self) -> usize {
        match self {
            ItemForm::AsStored => 1,
            ItemForm::Reversed(size) => (*size).max(1),
            ItemForm::Doubles { .. } => 8,
            ItemForm::Unpacked(packing) => packing.shown_size(),
        }
    }

    /// Returns the number of stored bytes that [`ItemForm::item`] bytes of the file stand for.
    pub fn stored_item(&self) -> usize {
        match self {
            ItemForm::Unpacked(packing) => packing.stored_size(),
            form => form.item(),
        }
    }

    /// Returns where whole items of the file are among the stored bytes.
    pub fn stored(&self, shown: Range<u64>) -> Range<u64> {
        let (from, to) = (self.item() as u64, self.stored_item() as u64);
        shown.start / from * to..shown.end / from * to
    }

    /// Returns where stored items are in the file: the opposite of [`ItemForm::stored`].
    pub fn shown(&self, stored: u64) -> u64 {
        stored / self.stored_item() as u64 * self.item() as u64
    }

    /// Returns whether whole items alone can be written.
    pub fn takes_whole_items(&self) -> bool {
        matches!(self, ItemForm::Unpacked(_))
    }

    /// Returns whether [`ItemForm::show`] can convert `bytes`, which are whole stored items.
    pub fn can_show(&self, bytes: &[u8]) -> bool {
        self.show(&mut bytes.to_vec()).is_ok()
    }

    /// Converts `bytes`, whole items as the array holds them, into the items that the file shows.
    ///
    /// # Errors
    ///
    /// ESTALE for an integer that no double holds exactly. `netcdf` chooses doubles only if all values fit, so the
    /// array has changed since the file was opened.
    pub fn show(&self, bytes: &mut Vec<u8>) -> Result<()> {
        let big_endian = match self {
            ItemForm::Doubles { big_endian } => big_endian,
            ItemForm::Unpacked(packing) => {
                *bytes = packing.unpack(bytes);
                return Ok(());
            }
            _ => return self.reverse(bytes),
        };
        for item in bytes.as_chunks_mut().0 {
            let n = if *big_endian { i64::from_be_bytes(*item) } else { i64::from_le_bytes(*item) };
            let shown = n as f64;
            if shown as i128 != i128::from(n) {
                let why = format!("{n} can't be shown as a double: open the file again");
                return Err(Error::new(Kind::System(libc::ESTALE), why));
            }
            *item = shown.to_be_bytes();
        }
        Ok(())
    }

    /// Converts `bytes`, whole items as the file shows them, into the items that the array holds.
    ///
    /// # Errors
    ///
    /// EINVAL for a double that is not a 64-bit integer, and for a value that the packing cannot hold.
    pub fn store(&self, bytes: &mut Vec<u8>) -> Result<()> {
        let big_endian = match self {
            ItemForm::Doubles { big_endian } => big_endian,
            ItemForm::Unpacked(packing) => {
                *bytes = packing.pack(bytes)?;
                return Ok(());
            }
            _ => return self.reverse(bytes),
        };
        for item in bytes.as_chunks_mut().0 {
            let shown = f64::from_be_bytes(*item);
            let n = shown as i64;
            if n as f64 != shown || i128::from(n) != shown as i128 {
                return Err(Error::invalid(format!("{shown} can't be stored: the array holds integers of 8 bytes")));
            }
            *item = if *big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
        }
        Ok(())
    }

    fn reverse(&self, bytes: &mut [u8]) -> Result<()> {
        if self.item() > 1 {
            bytes.chunks_exact_mut(self.item()).for_each(<[u8]>::reverse);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_items_are_stored_unchanged() {
        for form in [ItemForm::AsStored, ItemForm::Reversed(4), ItemForm::Reversed(8)] {
            let mut bytes: Vec<u8> = (0..16).collect();
            form.show(&mut bytes).unwrap();
            assert_eq!(bytes[0], form.item() as u8 - 1);
            form.store(&mut bytes).unwrap();
            assert_eq!(bytes, (0..16).collect::<Vec<u8>>());
        }
        for (n, big_endian) in [(0i64, true), (-7, false), (1 << 53, true), (i64::MIN, false), (3 << 60, true)] {
            let form = ItemForm::Doubles { big_endian };
            let stored = if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
            let mut bytes = stored.to_vec();
            form.show(&mut bytes).unwrap();
            assert_eq!(bytes, (n as f64).to_be_bytes());
            form.store(&mut bytes).unwrap();
            assert_eq!(bytes, stored);
        }
    }

    #[test]
    fn inexact_values_are_refused() {
        let form = ItemForm::Doubles { big_endian: true };
        for n in [(1i64 << 53) + 1, i64::MAX] {
            assert_eq!(form.show(&mut n.to_be_bytes().to_vec()).unwrap_err().errno(), libc::ESTALE);
            assert!(!form.can_show(&n.to_be_bytes()) && form.can_show(&(n / 2 + 1).to_be_bytes()));
        }
        for x in [0.5, f64::NAN, f64::INFINITY, 9.3e18, -9.3e18] {
            assert_eq!(form.store(&mut x.to_be_bytes().to_vec()).unwrap_err().errno(), libc::EINVAL, "{x}");
        }
    }
}
