//! Headers of answers, parsed. This module sends nothing.

use super::request_error::Cause;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderName, HeaderValue};
use std::ops::Range;

/// A Content-Range header, by RFC 9110, 14.4: `bytes 0-9/100`, or `bytes */100` for a range after
/// the end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContentRange {
    /// Bytes of the part; `None` if it is empty.
    pub range: Option<Range<u64>>,
    /// Size of the whole value in bytes, if stated.
    pub size: Option<u64>,
}

/// Parses the Content-Range header.
pub(super) fn content_range(headers: &HeaderMap) -> Option<ContentRange> {
    let text = text(headers, &CONTENT_RANGE)?.trim();
    let (unit, rest) = text.split_once(' ')?;
    let (range, size) = rest.trim().split_once('/')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    let range = if range.contains('-') {
        Some(first_to_last(range)?)
    } else {
        None
    };
    Some(ContentRange {
        range,
        size: size.trim().parse().ok(),
    })
}

/// Parses a range such as `0-9`.
pub(super) fn first_to_last(text: &str) -> Option<Range<u64>> {
    let (first, last) = text.split_once('-')?;
    let first: u64 = first.trim().parse().ok()?;
    let last: u64 = last.trim().parse().ok()?;
    Some(first..last.checked_add(1).filter(|end| *end >= first)?)
}

/// Returns the Content-Range header of the bytes `range` of a value of `size` bytes.
pub(super) fn content_range_of(range: Range<u64>, size: u64) -> Option<HeaderValue> {
    let text = if range.is_empty() {
        format!("bytes */{size}")
    } else {
        format!("bytes {}-{}/{size}", range.start, range.end - 1)
    };
    HeaderValue::try_from(text).ok()
}

/// Returns whether an answer with status 200 to a request for a part of a value is that part, as
/// its Content-Range says: some servers send the wrong status. `wanted` is the part, unless it is
/// the end of the value.
pub(super) fn is_part(headers: &HeaderMap, wanted: Option<&Range<u64>>) -> Result<bool, Cause> {
    let Some(ContentRange {
        range: Some(range),
        size,
    }) = content_range(headers)
    else {
        return Ok(false);
    };
    if length(headers).is_some_and(|length| length != range.end - range.start) {
        return Err(Cause::Wrong(
            "the server sends a body of another length than its Content-Range says",
        ));
    }
    match wanted {
        Some(wanted) if wanted.start == range.start && range.end <= wanted.end => Ok(true),
        // the whole value, of which the part is kept
        Some(_) if range.start == 0 && size == Some(range.end) => Ok(false),
        Some(_) => Err(Cause::Wrong(
            "the server sends another part of the value than requested",
        )),
        None => Ok(true),
    }
}

/// Returns the size of the value if an answer says that it has the bytes of `wanted`.
pub(super) fn size_of_part(headers: &HeaderMap, wanted: &Range<u64>) -> Option<u64> {
    let stated = content_range(headers)?;
    let size = stated.size?;
    (stated.range? == (wanted.start..wanted.end.min(size))).then_some(size)
}

/// Parses the Content-Length header.
pub(super) fn length(headers: &HeaderMap) -> Option<u64> {
    text(headers, &CONTENT_LENGTH)?.trim().parse().ok()
}

/// Returns a header as text.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the range of a partial answer, and checks that the body has its length.
pub(super) fn part_of(
    status: StatusCode,
    headers: &HeaderMap,
    received: u64,
) -> Result<Option<Range<u64>>, Cause> {
    if status != StatusCode::PARTIAL_CONTENT {
        return Ok(None);
    }
    match content_range(headers).and_then(|stated| stated.range) {
        None => Err(Cause::Wrong("a part of a value without a range")),
        Some(range) if range.end - range.start != received => {
            Err(Cause::short(received, range.end - range.start))
        }
        range => Ok(range),
    }
}
