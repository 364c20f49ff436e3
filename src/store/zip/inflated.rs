//! The values of deflated members that parts were asked of: a part can't be had without all that is before it, and who
//! wants one part often wants the next. It knows nothing of archives.

use crate::memory::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes that are kept. One larger value is kept, too, until the next one comes.
const LIMIT: usize = 64 << 20;

/// How many members can be inflated at a time.
const TURNS: usize = 16;

/// The values used last.
#[derive(Default)]
pub(super) struct Inflated {
    /// By their members' offsets, the latest last. Protects nothing else.
    values: Mutex<VecDeque<(u64, Arc<Vec<u8>>)>>,
    /// Held while a member is inflated, so that others wait for it instead of doing it, too.
    turns: [Mutex<()>; TURNS],
}

impl Inflated {
    /// The value of the member at `offset`, made by `inflate` where it is not kept.
    pub fn get<E>(&self, offset: u64, inflate: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Arc<Vec<u8>>, E> {
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
        let mut sum: usize = values.iter().map(|(_, value)| value.len()).sum();
        while sum > LIMIT && values.len() > 1 {
            sum -= values.pop_front().map_or(0, |(_, value)| value.len());
        }
        Ok(value)
    }

    fn kept(&self, offset: u64) -> Option<Arc<Vec<u8>>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn get(inflated: &Inflated, offset: u64, size: usize) -> bool {
        let mut made = false;
        let value = inflated.get(offset, || {
            made = true;
            Ok::<_, ()>(vec![offset as u8; size])
        });
        assert_eq!(*value.unwrap(), vec![offset as u8; size]);
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
        // a value larger than the limit drives all others out, and goes with the next one
        assert!(get(&inflated, 5, LIMIT + 1) && !get(&inflated, 5, LIMIT + 1) && get(&inflated, 1, third));
        assert!(get(&inflated, 5, LIMIT + 1));
    }

    #[test]
    fn what_fails_is_not_kept_and_nobody_inflates_what_another_does() {
        let inflated = Inflated::default();
        assert_eq!(inflated.get(7, || Err(1)), Err(1));
        let made = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let inflate = || {
                        made.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        Ok::<_, ()>(vec![7; 5])
                    };
                    assert_eq!(*inflated.get(7, inflate).unwrap(), [7; 5]);
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}
