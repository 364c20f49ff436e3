//! The statistics of a mount in the text format of Prometheus, version 0.0.4. Generating the text
//! sends no request to the store.

use super::Fs;
use std::fmt::{Display, Write};
use std::time::{Duration, UNIX_EPOCH};
use zarrfs_base::stats::{Stats, TIME_BOUNDS};

/// Counters that other metrics show with more detail.
const DETAILED: [&str; 1] = ["requests"];

/// Lines in the text format of Prometheus.
#[derive(Default)]
struct MetricText(String);

impl MetricText {
    /// Begins a family of samples.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', " ");
        let _ = writeln!(
            self.0,
            "# HELP zarrfs_{name} {help}\n# TYPE zarrfs_{name} {kind}"
        );
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"");
                format!("{name}=\"{}\"", value.replace('\n', "\\n"))
            })
            .collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        let _ = writeln!(self.0, "zarrfs_{name}{labels} {value}");
    }

    /// Adds a family of one sample.
    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }
}

impl Fs {
    /// Returns the statistics in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let mut text = MetricText::default();
        self.add_state(&mut text);
        add_counters(&self.stats, &mut text);
        add_requests(&self.stats, &mut text);
        text.0
    }

    fn add_state(&self, text: &mut MetricText) {
        text.family(
            "build_info",
            "gauge",
            "The version of the program, and the store that it shows.",
        );
        let store = self.store().location();
        text.sample(
            "build_info",
            &[("version", env!("CARGO_PKG_VERSION")), ("store", &store)],
            1,
        );
        text.single(
            "uptime_seconds",
            "gauge",
            "Time since the mount began.",
            seconds(self.tree.uptime()),
        );
        text.single(
            "cache_bytes",
            "gauge",
            "Memory of decoded chunks in bytes.",
            self.cache.used(),
        );
        text.single(
            "cache_bound_bytes",
            "gauge",
            "The bound of that memory, --cache-size.",
            self.cache.bound(),
        );
        let (chunks, bytes) = self.cache.unstored_total();
        text.single(
            "dirty_chunks",
            "gauge",
            "Chunks that were written and are not stored.",
            chunks,
        );
        text.single(
            "dirty_bytes",
            "gauge",
            "Decoded bytes of these chunks.",
            bytes,
        );
        text.single(
            "open_files",
            "gauge",
            "Open files of the mount.",
            self.files.len(),
        );
        text.single(
            "live_nodes",
            "gauge",
            "Names that the kernel keeps.",
            self.tree.live.len(),
        );
        let is_failing = u8::from(self.stats.is_failing());
        text.single(
            "store_failing",
            "gauge",
            "Whether the store takes no connection, or has not answered for a second or longer.",
            is_failing,
        );
        let at = self
            .stats
            .last_error()
            .and_then(|last| last.at.duration_since(UNIX_EPOCH).ok())
            .unwrap_or_default();
        let help = "Time of the latest error, which .zarrfs/stats shows; 0 if there is none.";
        text.single("last_error_timestamp_seconds", "gauge", help, seconds(at));
    }
}

fn add_counters(stats: &Stats, text: &mut MetricText) {
    for ((name, value), meaning) in stats.counters().into_iter().zip(Stats::meanings()) {
        if DETAILED.contains(&name) {
            continue;
        }
        match name.strip_suffix("_nanoseconds") {
            Some(what) => {
                let meaning = meaning.replacen("Nanoseconds", "Seconds", 1);
                let value = seconds(Duration::from_nanos(value));
                text.single(&format!("{what}_seconds_total"), "counter", &meaning, value);
            }
            None => text.single(&format!("{name}_total"), "counter", meaning, value),
        }
    }
}

fn add_requests(stats: &Stats, text: &mut MetricText) {
    let counts = stats.server_requests.counts();
    text.family(
        "requests_total",
        "counter",
        "Attempts of requests to a server, by kind and status.",
    );
    for (operation, counts) in &counts {
        for (outcome, count) in &counts.outcomes {
            let labels = [("kind", operation.name()), ("status", &outcome.to_string())];
            text.sample("requests_total", &labels, count);
        }
    }
    text.family("request_seconds", "histogram", "Times of these attempts.");
    for (operation, counts) in &counts {
        let kind = ("kind", operation.name());
        let mut sum = 0;
        let bounds = TIME_BOUNDS
            .iter()
            .map(f64::to_string)
            .chain(["+Inf".to_string()]);
        for (bound, count) in bounds.zip(counts.times) {
            sum += count;
            text.sample("request_seconds_bucket", &[kind, ("le", &bound)], sum);
        }
        text.sample("request_seconds_sum", &[kind], seconds(counts.total));
        text.sample("request_seconds_count", &[kind], sum);
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_base::stats::{ServerOperation, ServerOutcome};

    #[test]
    fn labels_are_escaped() {
        let mut text = MetricText::default();
        text.family("x", "gauge", "a\\b\nc");
        text.sample("x", &[("store", "a\"b\\c\nd"), ("kind", "e")], 1.5);
        let expected = "# HELP zarrfs_x a\\\\b c\n# TYPE zarrfs_x gauge\nzarrfs_x{store=\"a\\\"b\\\\c\\nd\",kind=\"e\"} 1.5\n";
        assert_eq!(text.0, expected);
    }

    #[test]
    fn buckets_of_times_are_cumulative() {
        let stats = Stats::default();
        let mut text = MetricText::default();
        for (status, milliseconds) in [(200, 3), (200, 30), (503, 50_000)] {
            let time = Duration::from_millis(milliseconds);
            stats.server_requests.record(
                ServerOperation::Get,
                ServerOutcome::of_status(status),
                time,
            );
        }
        add_requests(&stats, &mut text);
        for line in [
            "zarrfs_requests_total{kind=\"get\",status=\"200\"} 2",
            "zarrfs_requests_total{kind=\"get\",status=\"503\"} 1",
            "zarrfs_request_seconds_bucket{kind=\"get\",le=\"0.001\"} 0",
            "zarrfs_request_seconds_bucket{kind=\"get\",le=\"0.005\"} 1",
            "zarrfs_request_seconds_bucket{kind=\"get\",le=\"30\"} 2",
            "zarrfs_request_seconds_bucket{kind=\"get\",le=\"+Inf\"} 3",
            "zarrfs_request_seconds_sum{kind=\"get\"} 50.033",
            "zarrfs_request_seconds_count{kind=\"get\"} 3",
        ] {
            assert!(text.0.lines().any(|l| l == line), "{line}: {}", text.0);
        }
    }

    #[test]
    fn counters_of_time_are_in_seconds() {
        let stats = Stats::default();
        let mut text = MetricText::default();
        stats.codec_time.add(1_500_000_000);
        add_counters(&stats, &mut text);
        let expected = "# HELP zarrfs_codec_seconds_total Seconds in the codecs, summed over threads.\n\
            # TYPE zarrfs_codec_seconds_total counter\nzarrfs_codec_seconds_total 1.5\n";
        assert!(text.0.contains(expected), "{}", text.0);
        assert!(!text.0.contains("nanoseconds") && !text.0.contains("zarrfs_requests_total"));
    }
}
