//! Bounds the number of similar messages in the log, because a reader of a mount can provoke the
//! same message with each request. This module must not know where the log goes.

use log::Level;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// The time in which messages that are alike are counted.
const PERIOD: Duration = Duration::from_secs(60);

/// Maximum number of messages in a [`PERIOD`] that are alike and are written.
const MAX_ALIKE: u64 = 20;

/// Maximum number of kinds that are told apart by their words. Beyond it, all messages of one place
/// in the program are of one kind, so that users who choose the words can't fill the log.
const MAX_KINDS: usize = 64;

/// Maximum number of characters that a count quotes.
const MAX_QUOTED: usize = 500;

/// The messages of the last [`PERIOD`], by kind.
///
/// Invariant: the first message of a kind is written, and each one that is not written is counted
/// in a later message. Messages are of one kind if the same place in the program writes them, and
/// they differ only in words with digits, slashes or quotes.
#[derive(Default)]
pub struct Repeats(HashMap<u64, KindOfMessage>);

struct KindOfMessage {
    ends: Instant,
    count: u64,
    /// The level and the text of the latest message.
    level: Level,
    latest: String,
}

impl Repeats {
    /// Counts a message of a `place` in the program. Returns whether it is written.
    pub fn admits(
        &mut self,
        now: Instant,
        place: (&str, Option<u32>),
        level: Level,
        text: &str,
    ) -> bool {
        let mut hasher = DefaultHasher::new();
        place.hash(&mut hasher);
        let of_place = hasher.finish();
        let is_fixed = |word: &&str| {
            !word.contains(|c: char| c.is_ascii_digit() || matches!(c, '/' | '"' | '\''))
        };
        text.split(' ')
            .filter(is_fixed)
            .for_each(|word| word.hash(&mut hasher));
        let of_words = hasher.finish();
        let kind = if self.0.contains_key(&of_words) || self.0.len() < MAX_KINDS {
            of_words
        } else {
            of_place
        };
        let kind = self.0.entry(kind).or_insert_with(|| KindOfMessage {
            ends: now + PERIOD,
            count: 0,
            level,
            latest: String::new(),
        });
        kind.count += 1;
        if kind.count <= MAX_ALIKE {
            return true;
        }
        kind.level = level;
        kind.latest = text.chars().take(MAX_QUOTED).collect();
        false
    }

    /// Returns when the next period ends.
    pub fn next_end(&self) -> Option<Instant> {
        self.0.values().map(|kind| kind.ends).min()
    }

    /// Forgets the kinds whose period has ended `by` a time. Returns a message with the count of
    /// each that has left out some.
    pub fn end(&mut self, by: Instant) -> Vec<(Level, String)> {
        let ended = self.0.extract_if(|_, kind| kind.ends <= by);
        let counts = ended.filter_map(|(_, kind)| {
            let left_out = kind.count.checked_sub(MAX_ALIKE).filter(|n| *n > 0)?;
            let text = format!(
                "{left_out} more messages like this in {} s: {}",
                PERIOD.as_secs(),
                kind.latest
            );
            Some((kind.level, text))
        });
        counts.collect()
    }

    /// Ends all periods, as [`Repeats::end`] does.
    pub fn end_all(&mut self) -> Vec<(Level, String)> {
        self.next_end()
            .map_or_else(Vec::new, |end| self.end(end + PERIOD))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: (&str, Option<u32>) = ("place", Some(1));

    /// Counts which of the messages are written.
    fn written(repeats: &mut Repeats, texts: impl Iterator<Item = String>) -> u64 {
        let now = Instant::now();
        texts
            .filter(|text| repeats.admits(now, PLACE, Level::Error, text))
            .count() as u64
    }

    #[test]
    fn what_is_alike_is_counted_and_the_first_of_each_kind_is_written() {
        let mut repeats = Repeats::default();
        let reads = |cause: &'static str| {
            (0..1000).map(move |n| format!("read /a/{n} offset {n}: {cause}"))
        };
        assert_eq!(written(&mut repeats, reads("bad checksum")), MAX_ALIKE);
        assert_eq!(written(&mut repeats, reads("no space")), MAX_ALIKE);
        assert!(repeats.end(Instant::now()).is_empty());
        let mut counts = repeats.end_all();
        counts.sort();
        let left_out = 1000 - MAX_ALIKE;
        let count = |cause| {
            let text = format!(
                "{left_out} more messages like this in 60 s: read /a/999 offset 999: {cause}"
            );
            (Level::Error, text)
        };
        assert_eq!(counts, [count("bad checksum"), count("no space")]);
        // the next period
        assert_eq!(written(&mut repeats, reads("no space")), MAX_ALIKE);
    }

    #[test]
    fn words_that_users_choose_do_not_fill_the_log() {
        let mut repeats = Repeats::default();
        let words = (0..5000_u32).map(|n| {
            let word = format!("{n:04}")
                .bytes()
                .map(|digit| char::from(digit + 49))
                .collect();
            let word: String = word;
            format!("{word} is no name")
        });
        let words: Vec<_> = words.collect();
        let mut said = 0;
        for _ in 0..30 {
            said += written(&mut repeats, words.iter().cloned());
        }
        assert_eq!(said, (MAX_KINDS as u64 + 1) * MAX_ALIKE);
        // another place in the program is not drowned
        assert!(repeats.admits(Instant::now(), ("other", None), Level::Warn, "first"));
        let counted: u64 = repeats
            .end_all()
            .iter()
            .map(|(_, text)| text.split(' ').next().unwrap().parse::<u64>().unwrap())
            .sum();
        assert_eq!(said + counted, 30 * 5000);
    }
}
