//! Bodies of answers: which bytes are kept, and what an answer says of them. The module sends
//! nothing.

use super::{MAX_ERROR, ServerRequest, Transport};
use crate::answer_headers::{content_range_of, is_part, length, part_of, size_of_part};
use crate::connection_error::text_of;
use crate::request_error::Cause;
use crate::retry;
use reqwest::header::{CONTENT_RANGE, HeaderMap, RANGE, TRANSFER_ENCODING};
use reqwest::{Method, Response, StatusCode};
use std::ops::Range;
use tokio::time::timeout;
use zarrfs_base::memory;

/// Maximum number of bytes received to read a range from a server that does not support ranges.
const MAX_SKIPPED: u64 = 64 << 20;

impl Transport {
    /// Receives the body of an answer.
    pub(super) async fn receive(
        &self,
        request: &ServerRequest,
        mut response: Response,
        body: &mut Vec<u8>,
    ) -> Result<(StatusCode, HeaderMap), Cause> {
        body.clear();
        let mut status = response.status();
        let mut headers = std::mem::take(response.headers_mut());
        if retry::may_pass(status) {
            return Err(Cause::Busy(status, retry::after(&headers)));
        }
        if request.method == Method::HEAD {
            return Ok((status, headers));
        }
        let length = length(&headers);
        if status.is_success()
            && length.is_none()
            && !headers.contains_key(TRANSFER_ENCODING)
            && status != 204
        {
            return Err(Cause::Wrong(
                "the server does not send the length of the value, so its end is unknown",
            ));
        }
        let has_range = request.range.is_some() || request.headers.contains_key(RANGE);
        if status == StatusCode::OK && has_range && is_part(&headers, request.range.as_ref())? {
            status = StatusCode::PARTIAL_CONTENT;
        }
        // the server sends the whole value instead
        let kept = request.range.clone().filter(|_| status == StatusCode::OK);
        if kept.as_ref().is_some_and(|range| range.end > MAX_SKIPPED) {
            return Err(Cause::Wrong(
                "the server does not support ranges, and this one is too far into the value to be read from its start",
            ));
        }
        let limit = match kept {
            Some(_) => MAX_SKIPPED,
            None if status.is_success() => request.limit,
            None => MAX_ERROR,
        };
        let part = kept.clone().unwrap_or(0..u64::MAX);
        let received = self
            .receive_body(&mut response, length, limit, part, body)
            .await?;
        // without the size of the value, the answer stays as it is
        if let Some(kept) = kept
            && let Some(size) = length.or((received < kept.end).then_some(received))
        {
            let part = kept.start..kept.start + body.len() as u64;
            status = if part.is_empty() {
                StatusCode::RANGE_NOT_SATISFIABLE
            } else {
                StatusCode::PARTIAL_CONTENT
            };
            if let Some(part) = content_range_of(part, size) {
                headers.insert(CONTENT_RANGE, part);
            }
        }
        let part = part_of(status, &headers, body.len() as u64)?;
        // some servers return an empty part for a range after the end
        if part.is_some_and(|range| range.is_empty()) {
            status = StatusCode::RANGE_NOT_SATISFIABLE;
        }
        if status.is_success() {
            // the store knows better what a whole answer of unknown size is
            if status == StatusCode::PARTIAL_CONTENT
                && let Some(wanted) = &request.range
                && size_of_part(&headers, wanted).is_none()
            {
                return Err(Cause::Wrong(
                    "the server sends another part of the value than requested, or not its size",
                ));
            }
            self.stats.bytes_received.add(received);
        }
        Ok((status, headers))
    }

    /// Receives the bytes of the body that are in `kept` into the empty `body`, and no more after
    /// them. Returns the number of bytes received.
    async fn receive_body(
        &self,
        response: &mut Response,
        length: Option<u64>,
        limit: u64,
        kept: Range<u64>,
        body: &mut Vec<u8>,
    ) -> Result<u64, Cause> {
        let wanted = length.map(|length| length.min(kept.end));
        if let Some(wanted) = wanted {
            if wanted > limit {
                return Err(Cause::TooLarge {
                    size: length,
                    limit,
                });
            }
            memory::reserve(body, wanted.saturating_sub(kept.start) as usize)
                .map_err(Cause::System)?;
        }
        let end = wanted.unwrap_or(kept.end);
        let mut received = 0;
        while received < end {
            let piece = timeout(self.stall(), response.chunk())
                .await
                .map_err(|_| Cause::TimedOut(self.stall()))?;
            let Some(piece) = piece.map_err(|e| Cause::Broken(text_of(&e)))? else {
                break;
            };
            let len = (end - received).min(piece.len() as u64);
            if received + len > limit {
                return Err(Cause::TooLarge { size: None, limit });
            }
            let from = kept.start.saturating_sub(received).min(len);
            body.extend_from_slice(piece.get(from as usize..len as usize).unwrap_or_default());
            received += len;
        }
        match wanted {
            Some(wanted) if received < wanted => Err(Cause::short(received, wanted)),
            _ => Ok(received),
        }
    }
}
