//! The progress of a verb: one line on standard error, if that is a terminal.

use super::size;
use rustix::termios::tcgetwinsize;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time before the line is shown for the first time.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time between two updates of the line.
const PAUSE: Duration = Duration::from_millis(100);

/// Number of characters of the bar.
const WIDTH: usize = 30;

/// A line that shows the progress.
pub struct ProgressLine {
    total: Option<u64>,
    start: Instant,
    next: Instant,
    is_shown: bool,
    is_terminal: bool,
}

impl ProgressLine {
    /// Begins to measure a copy of `total` bytes, if that is known.
    pub fn start(total: Option<u64>) -> Self {
        let start = Instant::now();
        let is_terminal = std::io::stderr().is_terminal();
        ProgressLine {
            total,
            start,
            next: start + PATIENCE,
            is_shown: false,
            is_terminal,
        }
    }

    /// Shows that `done` bytes are copied.
    pub fn show(&mut self, done: u64) {
        let total = self.total;
        self.show_line(|elapsed| line(done, total, elapsed));
    }

    /// Shows the result of `line`, given the time since the start, unless the last update was less
    /// than [`PAUSE`] ago.
    pub fn show_line(&mut self, line: impl FnOnce(Duration) -> String) {
        let now = Instant::now();
        if self.is_terminal && now >= self.next {
            self.is_shown = true;
            self.next = now + PAUSE;
            self.write(&line(self.start.elapsed()));
        }
    }

    /// Removes the line, at the end or before other output.
    pub fn end(&mut self) {
        if self.is_shown {
            self.is_shown = false;
            self.write("");
        }
    }

    fn write(&self, line: &str) {
        // a line that wraps could not be overwritten
        let columns = tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        let most = if columns > 1 { columns - 1 } else { 79 };
        let line: String = line.chars().take(most).collect();
        // \x1b[K clears the rest of a longer line
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
    }
}

fn line(done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let per_second = size::show((done as f64 / elapsed.as_secs_f64().max(0.001)) as u64);
    let shown = size::show(done);
    let Some(total) = total.filter(|total| *total > 0) else {
        return format!("{shown}, {per_second}/s");
    };
    format!(
        "{}  {shown} of {}, {per_second}/s",
        bar(done, total),
        size::show(total)
    )
}

/// Returns a bar that shows `done` of `total`, and the percentage.
pub fn bar(done: u64, total: u64) -> String {
    let part = (done as f64 / total.max(1) as f64).min(1.0);
    let bar = "#".repeat((part * WIDTH as f64) as usize);
    format!("[{bar:<WIDTH$}] {:3.0}%", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_show_bytes_and_rates() {
        let second = Duration::from_secs(2);
        assert_eq!(line(3 << 20, None, second), "3.0 MiB, 1.5 MiB/s");
        let half = "[###############               ]  50%  3.0 MiB of 6.0 MiB, 1.5 MiB/s";
        assert_eq!(line(3 << 20, Some(6 << 20), second), half);
        let more = "[##############################] 100%  8 B of 4 B, 4 B/s";
        assert_eq!(line(8, Some(4), second), more);
        assert_eq!(line(0, Some(0), Duration::ZERO), "0 B, 0 B/s");
    }
}
