//! Caches recently used deflated members, since programs read one part after another. Small values
//! are cached whole, others as a [`MemberStream`]. The memory is granted, and released if other
//! requests need it.

use super::archive_file::ArchiveResult;
use super::index::ArchiveMember;
use super::member::MemberReader;
use super::stream::{self, MemberStream};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use zarrfs_base::memory::{self, Grant, Reclaim, lock};

/// Maximum size of a value that is cached whole, in bytes.
const MAX_WHOLE: u64 = 4 << 20;

/// Maximum size of all cached values, in bytes.
const MAX_CACHED: usize = 16 << 20;

/// Number of locks that members are distributed over while they are inflated.
const LOCKS: usize = 16;

/// A cache of deflated members.
#[derive(Default)]
pub(super) struct InflatedMembers {
    /// Cached members by the offsets of their headers, the most recently used last. The lock
    /// protects the list.
    values: Mutex<VecDeque<(u64, Arc<CachedMember>)>>,
    /// Held while a member is inflated, so that only one thread inflates it.
    locks: [Mutex<()>; LOCKS],
}

struct CachedMember {
    value: CachedValue,
    memory: Grant,
}

enum CachedValue {
    Whole(Vec<u8>),
    /// Protects the stream while a part is read.
    Stream(Mutex<Box<MemberStream>>),
}

impl InflatedMembers {
    /// Appends the bytes of `range` to `out`. The range must be within the value.
    pub fn read(
        &self,
        reader: &MemberReader,
        member: &ArchiveMember,
        range: Range<u64>,
        out: &mut Vec<u8>,
    ) -> ArchiveResult<()> {
        let kept = self.get(member.offset, || -> ArchiveResult<CachedMember> {
            let memory = memory::take(if member.size <= MAX_WHOLE {
                member.size as usize
            } else {
                stream::MEMORY
            })?;
            let value = if member.size <= MAX_WHOLE {
                let mut whole = Vec::new();
                reader.whole(member, &mut whole)?;
                CachedValue::Whole(whole)
            } else {
                CachedValue::Stream(Mutex::new(Box::new(MemberStream::open(reader, member)?)))
            };
            Ok(CachedMember { value, memory })
        })?;
        match &kept.value {
            CachedValue::Whole(whole) => {
                out.extend_from_slice(
                    whole
                        .get(range.start as usize..range.end as usize)
                        .unwrap_or_default(),
                );
                Ok(())
            }
            CachedValue::Stream(stream) => lock(stream).read(reader, member, range, out),
        }
    }

    /// Returns the member at `offset` from the cache, or inserts the result of `inflate`.
    fn get<E>(
        &self,
        offset: u64,
        inflate: impl FnOnce() -> Result<CachedMember, E>,
    ) -> Result<Arc<CachedMember>, E> {
        if let Some(value) = self.kept(offset) {
            return Ok(value);
        }
        let _guard = self.lock_of(offset);
        if let Some(value) = self.kept(offset) {
            return Ok(value);
        }
        let value = Arc::new(inflate()?);
        let mut values = lock(&self.values);
        values.push_back((offset, value.clone()));
        let mut sum: usize = values.iter().map(|(_, value)| value.memory.bytes()).sum();
        while sum > MAX_CACHED && values.len() > 1 {
            sum -= values
                .pop_front()
                .map_or(0, |(_, value)| value.memory.bytes());
        }
        Ok(value)
    }

    fn kept(&self, offset: u64) -> Option<Arc<CachedMember>> {
        let mut values = lock(&self.values);
        let position = values.iter().rposition(|(of, _)| *of == offset)?;
        let found = values.remove(position)?;
        let value = found.1.clone();
        values.push_back(found);
        Some(value)
    }

    fn lock_of(&self, offset: u64) -> MutexGuard<'_, ()> {
        // headers begin at any byte, so neighbors rarely share a lock
        lock(&self.locks[offset as usize % LOCKS])
    }
}

impl Reclaim for InflatedMembers {
    fn reclaim(&self) {
        if let Ok(mut values) = self.values.try_lock() {
            values.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(inflated: &InflatedMembers, offset: u64, size: usize) -> bool {
        let mut made = false;
        let value = inflated.get(offset, || {
            made = true;
            Ok::<_, zarrfs_base::error::Error>(CachedMember {
                value: CachedValue::Whole(vec![offset as u8]),
                memory: memory::take(size)?,
            })
        });
        assert!(
            matches!(&value.unwrap().value, CachedValue::Whole(whole) if *whole == [offset as u8])
        );
        made
    }

    #[test]
    fn the_latest_values_are_kept_within_the_limit() {
        let inflated = InflatedMembers::default();
        let third = MAX_CACHED / 3;
        assert!(get(&inflated, 1, third) && get(&inflated, 2, third) && get(&inflated, 3, third));
        assert!(!get(&inflated, 1, third));
        // 2 was the least recently used one
        assert!(get(&inflated, 4, third) && !get(&inflated, 1, third) && !get(&inflated, 3, third));
        assert!(get(&inflated, 2, third));
        inflated.reclaim();
        assert!(get(&inflated, 2, third));
    }

    #[test]
    fn failures_are_not_cached_and_one_thread_inflates_a_member() {
        let inflated = InflatedMembers::default();
        assert!(inflated.get(7, || Err(1)).is_err_and(|e| e == 1));
        let made = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let inflate = || {
                        made.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        Ok::<_, ()>(CachedMember {
                            value: CachedValue::Whole(vec![7; 5]),
                            memory: Grant::default(),
                        })
                    };
                    assert!(inflated.get(7, inflate).is_ok());
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}
