//! The deflated members that parts were asked of: who wants one part often wants the next. Small values are kept whole,
//! of others the [`Stream`] is. What is kept is counted, and given up for who needs the memory.

use super::archive::Outcome;
use super::index::Member;
use super::member::Reader;
use super::stream::{self, Stream};
use crate::util::memory::{self, Grant, Reclaim, lock};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes of the largest value that is kept whole.
const SMALL: u64 = 4 << 20;

/// Bytes that are kept.
const LIMIT: usize = 16 << 20;

/// How many members can be inflated at a time.
const TURNS: usize = 16;

/// The values used last.
#[derive(Default)]
pub(super) struct Inflated {
    /// By their members' offsets, the latest last. Protects nothing else.
    values: Mutex<VecDeque<(u64, Arc<Kept>)>>,
    /// Held while a member is inflated, so that others wait for it instead of doing it, too.
    turns: [Mutex<()>; TURNS],
}

struct Kept {
    value: Value,
    memory: Grant,
}

enum Value {
    Whole(Vec<u8>),
    /// Protects the stream while a part is read.
    Stream(Mutex<Box<Stream>>),
}

impl Inflated {
    /// Adds the bytes of `range`, which is a part of the member's value, to `out`.
    pub fn read(&self, reader: &Reader, member: &Member, range: Range<u64>, out: &mut Vec<u8>) -> Outcome<()> {
        let kept = self.get(member.offset, || -> Outcome<Kept> {
            let memory = memory::take(if member.size <= SMALL { member.size as usize } else { stream::MEMORY })?;
            let value = match member.size <= SMALL {
                true => {
                    let mut whole = Vec::new();
                    reader.whole(member, &mut whole)?;
                    Value::Whole(whole)
                }
                false => Value::Stream(Mutex::new(Box::new(Stream::open(reader, member)?))),
            };
            Ok(Kept { value, memory })
        })?;
        match &kept.value {
            Value::Whole(whole) => {
                out.extend_from_slice(whole.get(range.start as usize..range.end as usize).unwrap_or_default());
                Ok(())
            }
            Value::Stream(stream) => lock(stream).read(reader, member, range, out),
        }
    }

    /// The value of the member at `offset`, made by `inflate` where it is not kept.
    fn get<E>(&self, offset: u64, inflate: impl FnOnce() -> Result<Kept, E>) -> Result<Arc<Kept>, E> {
        if let Some(value) = self.kept(offset) {
            return Ok(value);
        }
        let _turn = self.turn(offset);
        if let Some(value) = self.kept(offset) {
            return Ok(value);
        }
        let value = Arc::new(inflate()?);
        let mut values = lock(&self.values);
        values.push_back((offset, value.clone()));
        let mut sum: usize = values.iter().map(|(_, value)| value.memory.bytes()).sum();
        while sum > LIMIT && values.len() > 1 {
            sum -= values.pop_front().map_or(0, |(_, value)| value.memory.bytes());
        }
        Ok(value)
    }

    fn kept(&self, offset: u64) -> Option<Arc<Kept>> {
        let mut values = lock(&self.values);
        let place = values.iter().rposition(|(of, _)| *of == offset)?;
        let found = values.remove(place)?;
        let value = found.1.clone();
        values.push_back(found);
        Some(value)
    }

    fn turn(&self, offset: u64) -> MutexGuard<'_, ()> {
        // headers stand at any byte: neighbours rarely have the same turn
        lock(&self.turns[offset as usize % TURNS])
    }
}

impl Reclaim for Inflated {
    fn reclaim(&self) {
        if let Ok(mut values) = self.values.try_lock() {
            values.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(inflated: &Inflated, offset: u64, size: usize) -> bool {
        let mut made = false;
        let value = inflated.get(offset, || {
            made = true;
            Ok::<_, crate::error::Error>(Kept { value: Value::Whole(vec![offset as u8]), memory: memory::take(size)? })
        });
        assert!(matches!(&value.unwrap().value, Value::Whole(whole) if *whole == [offset as u8]));
        made
    }

    #[test]
    fn the_latest_values_are_kept_within_the_limit() {
        let inflated = Inflated::default();
        let third = LIMIT / 3;
        assert!(get(&inflated, 1, third) && get(&inflated, 2, third) && get(&inflated, 3, third));
        assert!(!get(&inflated, 1, third));
        // 2 was used before all others
        assert!(get(&inflated, 4, third) && !get(&inflated, 1, third) && !get(&inflated, 3, third));
        assert!(get(&inflated, 2, third));
        inflated.reclaim();
        assert!(get(&inflated, 2, third));
    }

    #[test]
    fn what_fails_is_not_kept_and_nobody_inflates_what_another_does() {
        let inflated = Inflated::default();
        assert!(inflated.get(7, || Err(1)).is_err_and(|e| e == 1));
        let made = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let inflate = || {
                        made.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        Ok::<_, ()>(Kept { value: Value::Whole(vec![7; 5]), memory: Grant::default() })
                    };
                    assert!(inflated.get(7, inflate).is_ok());
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}
