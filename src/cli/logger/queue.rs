//! The queue of lines between the threads that log and the destination of the log. A single thread
//! writes them, because a pipe without a reader, a stopped terminal or a hanging file system blocks
//! the writing thread. This module must not know which messages are alike.

use super::LineFormat;
use super::repeats::Repeats;
use log::Level;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use zarrfs_base::memory::lock;

/// Maximum number of bytes of waiting lines.
const MAX_WAITING: usize = 256 << 10;

/// The time that a thread waits until its line is written, and a process at its end.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Lines that wait for the thread that writes them.
///
/// Invariants: a thread waits until its line is written, so that the log is complete if the process
/// is killed. After a thread has waited in vain, no thread waits until all lines are written. A
/// later line states the number of lost lines.
pub struct LogQueue {
    format: LineFormat,
    patience: Duration,
    /// Not held while a line is written.
    state: Mutex<QueueState>,
    /// Notified when there is a line to write.
    filled: Condvar,
    /// Notified when a line was written.
    emptied: Condvar,
}

#[derive(Default)]
struct QueueState {
    lines: VecDeque<Vec<u8>>,
    /// Bytes of the lines.
    waiting: usize,
    /// Numbers of lines that were put into the queue, and that were written or lost since.
    accepted: u64,
    done: u64,
    /// Whether a thread has waited in vain.
    is_stuck: bool,
    /// Number of lines that could not be written.
    lost: u64,
    repeats: Repeats,
}

impl QueueState {
    fn push(&mut self, line: Vec<u8>) {
        if !self.lines.is_empty() && self.waiting + line.len() > MAX_WAITING {
            self.lost += 1;
            return;
        }
        self.waiting += line.len();
        self.lines.push_back(line);
        self.accepted += 1;
    }

    fn push_messages(&mut self, format: &LineFormat, messages: Vec<(Level, String)>) {
        for (level, text) in messages {
            self.push(format.line(level, &text));
        }
    }
}

impl LogQueue {
    /// Creates an empty queue.
    pub fn new(format: LineFormat, patience: Duration) -> Self {
        LogQueue {
            format,
            patience,
            state: Mutex::default(),
            filled: Condvar::new(),
            emptied: Condvar::new(),
        }
    }

    /// Returns how lines look.
    pub fn format(&self) -> &LineFormat {
        &self.format
    }

    /// Writes a message, unless `place`, a place in the program, has written many like it.
    pub fn write(&self, place: Option<(&str, Option<u32>)>, level: Level, text: &str) {
        let mut state = lock(&self.state);
        if let Some(place) = place {
            let now = Instant::now();
            let counts = state.repeats.end(now);
            state.push_messages(&self.format, counts);
            if !state.repeats.admits(now, place, level, text) {
                return;
            }
        }
        drop(state);
        self.write_line(self.format.line(level, text));
    }

    /// Writes a line as it is.
    pub fn write_line(&self, line: Vec<u8>) {
        let mut state = lock(&self.state);
        state.push(line);
        self.filled.notify_all();
        let number = state.accepted;
        let (mut state, waited) = self
            .emptied
            .wait_timeout_while(state, self.patience, |state| {
                state.done < number && !state.is_stuck
            })
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            state.is_stuck = true;
            self.emptied.notify_all();
        }
    }

    /// Writes the counts, and waits a limited time until all lines are written.
    pub fn end(&self) {
        let mut state = lock(&self.state);
        let counts = state.repeats.end_all();
        state.push_messages(&self.format, counts);
        self.filled.notify_all();
        let _ = self
            .emptied
            .wait_timeout_while(state, self.patience, |state| state.done < state.accepted);
    }

    /// Writes the lines to `out`, each by one call, for as long as the process lives.
    pub fn run(&self, mut out: impl Write) {
        loop {
            let line = self.next();
            let is_written = out.write_all(&line).is_ok();
            let mut state = lock(&self.state);
            state.done += 1;
            if !is_written {
                state.lost += 1;
            } else if state.lost > 0 && state.lines.is_empty() {
                let text = format!("lost messages before this: {}", state.lost);
                state.lost = 0;
                state.push(self.format.line(Level::Warn, &text));
            }
            if state.lines.is_empty() {
                state.is_stuck = false;
            }
            self.emptied.notify_all();
        }
    }

    /// Waits for the next line to write.
    fn next(&self) -> Vec<u8> {
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            let counts = state.repeats.end(now);
            state.push_messages(&self.format, counts);
            if let Some(line) = state.lines.pop_front() {
                state.waiting -= line.len();
                return line;
            }
            state = match state.repeats.next_end() {
                Some(end) => {
                    let waited = self.filled.wait_timeout(state, end - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self
                    .filled
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A destination whose writes wait for the test, which decides their outcome.
    struct Gate {
        opened: Receiver<io::Result<()>>,
        written: Sender<String>,
    }

    impl Write for Gate {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            if let Ok(outcome) = self.opened.recv() {
                outcome?;
            }
            let _ = self
                .written
                .send(String::from_utf8_lossy(line).into_owned());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn queue(patience: Duration) -> (Arc<LogQueue>, Sender<io::Result<()>>, Receiver<String>) {
        let queue = Arc::new(LogQueue::new(LineFormat::Terminal, patience));
        let (open, opened) = channel();
        let (written, lines) = channel();
        let of_thread = queue.clone();
        std::thread::spawn(move || of_thread.run(Gate { opened, written }));
        (queue, open, lines)
    }

    #[test]
    fn a_reader_that_stops_delays_no_one_for_good() {
        let (queue, open, lines) = queue(Duration::from_millis(1));
        let filling = "x".repeat(1 << 10);
        let count = 2 * MAX_WAITING / filling.len();
        // all return although no line is written
        for n in 0..count {
            queue.write(None, Level::Error, &format!("{n} {filling}"));
        }
        queue.end();
        drop(open);
        let mut kept = 0;
        let lost = loop {
            let line = lines.recv().unwrap();
            if let Some(lost) = line.strip_prefix("zarrfs: warn: lost messages before this: ") {
                break lost.trim().parse::<usize>().unwrap();
            }
            assert_eq!(line, format!("zarrfs: error: {kept} {filling}\n"));
            kept += 1;
        };
        assert!(kept > 1 && lost > 1, "{kept} {lost}");
        assert_eq!(kept + lost, count);
    }

    #[test]
    fn a_line_is_written_when_the_thread_goes_on() {
        let (queue, open, lines) = queue(Duration::from_secs(600));
        open.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        drop(open);
        queue.write(None, Level::Error, "first");
        for n in 0..2 {
            queue.write(None, Level::Error, &n.to_string());
            assert_eq!(lines.try_recv().unwrap(), format!("zarrfs: error: {n}\n"));
            if n == 0 {
                let lost = "zarrfs: warn: lost messages before this: 1\n";
                assert_eq!(lines.recv().unwrap(), lost);
            }
        }
        let place = Some(("place", None));
        for n in 0..21 {
            queue.write(place, Level::Error, &format!("word {n}"));
        }
        queue.end();
        let said: Vec<_> = lines.try_iter().collect();
        assert_eq!(said.len(), 21);
        let count = "zarrfs: error: 1 more messages like this in 60 s: word 20\n";
        assert_eq!(said[20], count);
    }
}
