//! `zarrfs stats`: prints the counters of a running mount, once or at intervals. Without a
//! mountpoint it lists all mounts.

mod list;
pub mod listen;

use super::{CommandFailure, CommandResult, ExitCode, duration, size, stdio};
use crate::fs::tree::METRICS;
use crate::fuse::{MountEntry, PATIENCE, mount_of, read_control, read_statistics};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, lines};
use zarrfs_base::json::{self, Map, Value};

/// Arguments of `stats`.
#[derive(Args)]
pub struct StatsArgs {
    /// Mountpoint, or a path in the mount; without one, list all mounts
    ///
    /// The list has all mounts of zarrfs in the mount table of this command: store, process, user,
    /// state, bytes that are not stored, options and the latest error. No mount can delay it for
    /// longer than three seconds. The state is ok; failing, if the store does not answer; hangs, if
    /// the daemon does not answer; ended, if there is none; covered by another mount; or denied, if
    /// the mount is of another user. The exit code is 1 if a mount hangs or its daemon has ended.
    mountpoint: Option<PathBuf>,
    /// Print again at this interval (500ms, 1s, 2m)
    ///
    /// Each time with the change per second, until the command is interrupted or the store
    /// unmounted.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "mountpoint")]
    watch: Option<Duration>,
    /// Print a JSON object in one line, or a list of mounts
    #[arg(long)]
    json: bool,
    /// Print in the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "watch"], requires = "mountpoint")]
    prometheus: bool,
}

/// The counters at one moment.
struct Sample {
    at: Instant,
    text: Vec<u8>,
    values: Map<String, Value>,
}

impl Sample {
    fn take(mount: &MountEntry) -> Result<Sample, Error> {
        let text = read_statistics(mount)?;
        let Ok(Value::Object(values)) = json::parse(&text) else {
            return Err(Error::damaged("no counters in it"));
        };
        Ok(Sample {
            at: Instant::now(),
            text,
            values,
        })
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.values.get(name).and_then(json::float)
    }
}

/// Runs the verb.
pub fn run(args: &StatsArgs) -> CommandResult {
    let Some(path) = &args.mountpoint else {
        return list::run(args.json);
    };
    let shown = path.display();
    let mount = mount_of(path).map_err(|e| match e.errno() {
        libc::ENOENT | libc::ENOTDIR => no_such_path(path),
        _ => CommandFailure::failed(format!("{shown}: {e}")),
    })?;
    let mount = mount
        .ok_or_else(|| CommandFailure::mountpoint(format!("{shown}: not in a mount of zarrfs")))?;
    if args.prometheus {
        return stdio::print(
            read_control(&mount, METRICS, PATIENCE).map_err(|e| unanswered(path, &mount, e))?,
        );
    }
    let first = Sample::take(&mount).map_err(|e| unanswered(path, &mount, e))?;
    match args.watch {
        None => stdio::ended(print(&first, None, args.json)),
        Some(pause) => watch(first, &mount, pause, args.json),
    }
    .map_err(|e| CommandFailure::failed(format!("{shown}: {}", e.message)).plain())
}

/// Returns the failure of a mount whose control file can't be read. `path` is in the mount.
pub fn unanswered(path: &Path, mount: &MountEntry, e: Error) -> CommandFailure {
    let shown = path.display();
    match e.errno() {
        libc::ENOTCONN => CommandFailure::new(
            ExitCode::Stale,
            format!(
                "{shown}: its daemon has ended; run zarrfs umount {}",
                mount.path.display()
            ),
        ),
        libc::ENOENT | libc::ENOTDIR => no_such_path(path),
        _ => CommandFailure::failed(format!("{shown}: {e}")),
    }
}

fn no_such_path(path: &Path) -> CommandFailure {
    let why = format!("{}: no such file or directory", path.display());
    CommandFailure::mountpoint(why)
}

/// Prints `first` and later samples, until a signal arrives or the mount ends. Holds no file of the
/// mount open.
fn watch(first: Sample, mount: &MountEntry, pause: Duration, as_json: bool) -> CommandResult {
    let (interrupted, signal) = UnixStream::pair()?;
    for number in [SIGINT, SIGTERM] {
        let signal = signal.try_clone()?;
        signal_hook::low_level::pipe::register(number, signal)?;
    }
    let pause = Timespec {
        tv_sec: pause.as_secs() as i64,
        tv_nsec: pause.subsec_nanos().into(),
    };
    let mut printed = print(&first, None, as_json);
    let mut last = first;
    while printed.is_ok() {
        let mut wait = [PollFd::new(&interrupted, PollFlags::IN)];
        if poll(&mut wait, Some(&pause)).is_ok_and(|n| n > 0) {
            return Ok(());
        }
        let next = match Sample::take(mount) {
            Err(e) if e.errno() == libc::ETIMEDOUT => return Err(e.into()),
            Err(_) => return Ok(()),
            Ok(next) => next,
        };
        // another mount took the same path
        if next.values.get("pid") != last.values.get("pid") {
            return Ok(());
        }
        printed = print_next(&next, &last, as_json);
        last = next;
    }
    stdio::ended(printed)
}

fn print_next(next: &Sample, last: &Sample, as_json: bool) -> std::io::Result<()> {
    if !as_json {
        writeln!(stdio::output())?;
    }
    print(next, Some(last), as_json)
}

fn print(sample: &Sample, last: Option<&Sample>, as_json: bool) -> std::io::Result<()> {
    let mut out = stdio::output();
    if as_json {
        out.write_all(&sample.text)?;
    } else {
        // the daemon may be another user's program
        out.write_all(lines(&table(sample, last)).as_bytes())?;
    }
    out.flush()
}

/// Returns lines of a name, a value and, for values that changed since `last`, the change per
/// second.
fn table(sample: &Sample, last: Option<&Sample>) -> String {
    let mut lines: Vec<[String; 3]> = Vec::new();
    for (name, value) in &sample.values {
        if let Value::Array(list) = value {
            let name = name.strip_suffix('s').unwrap_or(name);
            lines.extend(
                list.iter()
                    .map(|v| [label(name), problem(v), String::new()]),
            );
            continue;
        }
        let change = last.and_then(|last| {
            let seconds = sample.at.duration_since(last.at).as_secs_f64();
            let change = sample.number(name)? - last.number(name)?;
            (change != 0.0).then(|| show(name, change / seconds, true) + "/s")
        });
        let shown = sample
            .number(name)
            .map_or_else(|| json::plain(value), |n| show(name, n, false));
        lines.push([label(name), shown, change.unwrap_or_default()]);
    }
    let names = lines.iter().map(|line| line[0].len()).max().unwrap_or(0);
    // long text without a third column doesn't widen the second
    let changed = lines.iter().filter(|line| !line[2].is_empty());
    let values = changed.map(|line| line[1].len()).max().unwrap_or(0);
    let mut text = String::new();
    for [name, value, change] in &lines {
        let line = format!("{name:<names$}  {value:<values$}  {change}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Returns the label of a counter. `store_nanoseconds` is shown as `store time` and
/// `uptime_seconds` as `uptime`, since their values have units.
fn label(name: &str) -> String {
    let time = name
        .strip_suffix("_nanoseconds")
        .map(|what| format!("{what}_time"));
    let time = time.or_else(|| name.strip_suffix("_seconds").map(str::to_string));
    time.unwrap_or_else(|| name.to_string()).replace('_', " ")
}

/// Returns a number in the unit of its counter. With `signed`, a positive number gets a plus sign.
fn show(name: &str, number: f64, signed: bool) -> String {
    let sign = if number < 0.0 {
        "-"
    } else if signed {
        "+"
    } else {
        ""
    };
    let number = number.abs();
    let text = if name.ends_with("_nanoseconds") {
        duration::show(number)
    } else if name.ends_with("_seconds") {
        duration::show(number * 1e9)
    } else if name.starts_with("bytes_") || name.ends_with("_bytes") || name == "cache_bound" {
        size::show(number as u64)
    } else if signed && number < 100.0 {
        format!("{number:.1}")
    } else {
        format!("{number:.0}")
    };
    format!("{sign}{text}")
}

/// Returns the text of a problem with its time and count.
fn problem(value: &Value) -> String {
    let [time, count, message] = ["time", "count", "message"]
        .map(|name| value.get(name).map(json::plain).unwrap_or_default());
    format!("{time} {count}x {message}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: Instant, text: &str) -> Sample {
        let Value::Object(values) = json::parse(text.as_bytes()).unwrap() else {
            panic!()
        };
        Sample {
            at,
            text: text.into(),
            values,
        }
    }

    #[test]
    fn counters_are_shown_in_the_units_of_their_names() {
        let start = Instant::now();
        let before = r#"{"store": "/s", "pid": 7, "bytes_new": 0, "copy_nanoseconds": 0, "hits": 5, "problems": []}"#;
        let after = r#"{"store": "/s", "pid": 7, "bytes_new": 4194304, "copy_nanoseconds": 700000000, "hits": 4,
            "other": "x", "problems": [{"time": "2026-01-01T00:00:00Z", "count": 2, "message": "/a: bad"}]}"#;
        let before = sample(start, before);
        let after = sample(start + Duration::from_secs(2), after);
        let expected = "store      /s\npid        7\nbytes new  4.0 MiB  +2.0 MiB/s\ncopy time  700 ms   +350 ms/s\n\
            hits       4        -0.5/s\nother      x\nproblem    2026-01-01T00:00:00Z 2x /a: bad\n";
        assert_eq!(table(&after, Some(&before)), expected);
        assert!(
            !table(&after, None).contains("/s\n+")
                && table(&before, None).contains("hits       5\n")
        );
    }
}
