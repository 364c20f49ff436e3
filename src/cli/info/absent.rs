//! `zarrfs info --json --absent`: adds the ranges of chunks that are not stored to the objects of
//! the listing, and prints each range as soon as it is found. This module must not know how the
//! ranges are found.

use super::{InfoRow, RowContent};
use crate::array::Array;
use crate::check::{AbsentChunks, items_of};
use crate::cli::{CommandFailure, CommandResult, stdio};
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use zarrfs_base::error::{Error, one_line};
use zarrfs_base::json::{self, json};

/// Prints the list of `objects`, which belong to `rows`. An array has its ranges in the member
/// `absent`, and the reason why they are not complete in `absent_error`.
///
/// # Errors
///
/// The first error of a listing, once all is printed, and errors of standard output.
pub fn print_with_absent(rows: &[InfoRow], objects: &[String]) -> CommandResult {
    let mut out = BufWriter::new(stdio::output());
    let listed = write_list(&mut out, rows, objects);
    let flushed = out.flush();
    match listed {
        Ok(Some(e)) => {
            stdio::ended(flushed)?;
            Err(CommandFailure::from(e).plain())
        }
        Ok(None) => stdio::ended(flushed),
        Err(e) => stdio::ended(Err(e)),
    }
}

/// Prints the list. Returns the first error that ended the ranges of an array.
fn write_list(
    out: &mut impl Write,
    rows: &[InfoRow],
    objects: &[String],
) -> io::Result<Option<Error>> {
    let mut failure = None;
    out.write_all(b"[\n")?;
    for (i, (row, object)) in rows.iter().zip(objects).enumerate() {
        if i > 0 {
            out.write_all(b",\n")?;
        }
        if let RowContent::Array(array) = &row.content {
            let failed = write_array(out, array.array(), object)?;
            failure = failure.or(failed);
        } else {
            out.write_all(object.as_bytes())?;
        }
    }
    out.write_all(b"\n]\n")?;
    Ok(failure)
}

/// Prints the object of an array with its ranges. Returns the error that ended the ranges.
fn write_array(
    out: &mut impl Write,
    array: &Arc<Array>,
    object: &str,
) -> io::Result<Option<Error>> {
    let open = object.strip_suffix('}').unwrap_or(object);
    write!(out, "{open},\"absent\":[")?;
    let mut failed = None;
    for (i, found) in AbsentChunks::new(array).enumerate() {
        match found {
            Ok(chunks) => {
                let range = json!({"chunks": chunks, "items": items_of(array, &chunks)});
                let comma = if i > 0 { "," } else { "" };
                write!(out, "{comma}\n{}", json::write(&range))?;
            }
            Err(e) => failed = Some(e),
        }
    }
    out.write_all(b"]")?;
    if let Some(e) = &failed {
        let why = json::write(&json!(e.to_string()));
        write!(out, ",\"absent_error\":{}", one_line(why))?;
    }
    out.write_all(b"}")?;
    Ok(failed)
}
