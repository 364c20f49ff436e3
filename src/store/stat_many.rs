//! Asking for many keys where some answers are known already. It knows neither where from, nor who asks.

use super::{Key, Stat, Store};
use crate::error::Result;

/// Keys that are asked for together at most.
const TOGETHER: usize = 1024;

/// Calls `each` with what stands at each of `keys`, in order, until it returns false: what `known` tells, and of the rest
/// what `below` answers, which is asked for all of that at once.
pub fn stat_many_with(
    below: &dyn Store,
    keys: &mut dyn Iterator<Item = Key>,
    known: &mut dyn FnMut(&Key) -> Option<Option<Stat>>,
    each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
) {
    loop {
        let (mut unknown, mut told) = (Vec::new(), Vec::new());
        for key in keys.take(TOGETHER) {
            let answer = known(&key);
            if answer.is_none() {
                unknown.push(key);
            }
            told.push(answer);
        }
        if told.is_empty() {
            return;
        }
        let (mut told, mut goes_on) = (told.into_iter(), true);
        // what is known goes out between what is asked for, up to the next of that
        let mut tell_known = |each: &mut dyn FnMut(Result<Option<Stat>>) -> bool| {
            told.by_ref().map_while(|answer| answer).all(|stat| each(Ok(stat)))
        };
        goes_on &= tell_known(each);
        if goes_on && !unknown.is_empty() {
            below.stat_many(&mut unknown.into_iter(), &mut |stat| {
                goes_on = each(stat) && tell_known(each);
                goes_on
            });
        }
        if !goes_on {
            return;
        }
    }
}
