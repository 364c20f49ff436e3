//! `zarrfs check`: prints the faults of a store, line by line as they are found, or as one JSON
//! object.

use super::progress::{ProgressLine, bar};
use super::{
    CommandFailure, CommandResult, MemoryArgs, Reading, StoreArgs, StoreLocation, StoreRequest,
    size, stdio,
};
use crate::check::{CheckOptions, Event, Finding, Severity, Summary, check};
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zarrfs_base::error::one_line;
use zarrfs_base::json::{self, Value, json};

/// Arguments of `check`.
#[derive(Args)]
#[command(after_help = "Exits with 1 if there are errors or warnings, or if it was interrupted.")]
pub struct CheckArgs {
    /// Path of the store, or of a group or array in it
    store: StoreLocation,
    /// Decode each chunk, instead of checking its size
    #[arg(long)]
    deep: bool,
    /// Report findings that are no faults, too
    ///
    /// Plain files, directories without the document of a group, arrays of Zarr v1, waste in
    /// shards.
    #[arg(long)]
    notes: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// The output of a check, while it runs.
struct Report<'a> {
    args: &'a CheckArgs,
    progress: Option<ProgressLine>,
    errors: u64,
    warnings: u64,
    notes: u64,
    /// Number of printed findings.
    printed: u64,
    /// The error after which nothing more is printed.
    broken: Option<std::io::Error>,
    stop: &'a AtomicBool,
}

/// Runs the verb.
pub fn run(args: &CheckArgs) -> CommandResult {
    let mut store_args = args.store_args.clone();
    store_args.usage.lists_unfinished = true;
    store_args.usage.reading = Reading::WholeOnce;
    args.memory.set_bound();
    let hierarchy = StoreRequest::reading(&args.store, &store_args, &Arc::default()).hierarchy()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // the second signal ends the process
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let mut report = Report::new(args, &stop);
    report.begin();
    let how = CheckOptions {
        deep: args.deep,
        threads: args.memory.threads(),
        stop: &stop,
    };
    let summary = check(&hierarchy, how, &mut |event| report.tell(event));
    report.end(&summary)
}

impl<'a> Report<'a> {
    fn new(args: &'a CheckArgs, stop: &'a AtomicBool) -> Self {
        let progress = (!args.json).then(|| ProgressLine::start(None));
        Report {
            args,
            progress,
            errors: 0,
            warnings: 0,
            notes: 0,
            printed: 0,
            broken: None,
            stop,
        }
    }

    fn begin(&mut self) {
        if self.args.json {
            let store = json::write(&Value::from(self.args.store.to_string()));
            self.print(&format!("{{\"store\":{store},\"findings\":["));
        }
    }

    fn tell(&mut self, event: Event) {
        match event {
            Event::Found(finding) => self.found(&finding),
            Event::Progress(array, done, summary) => {
                if let Some(progress) = &mut self.progress {
                    progress.show_line(|elapsed| {
                        let known = array.grid().chunk_count();
                        let seconds = elapsed.as_secs_f64().max(0.001);
                        let per_second = if self.args.deep {
                            size::show((summary.bytes as f64 / seconds) as u64)
                        } else {
                            format!(
                                "{} chunks",
                                size::count((summary.chunks as f64 / seconds) as u64)
                            )
                        };
                        let [shown, known_shown] = [done, known].map(size::count);
                        format!(
                            "{}  {shown} of {known_shown} chunks of {}, {per_second}/s",
                            bar(done, known),
                            array.key()
                        )
                    });
                }
            }
        }
    }

    fn found(&mut self, finding: &Finding) {
        let level = finding.fault.level();
        match level {
            Severity::Error => self.errors += 1,
            Severity::Warning => self.warnings += 1,
            Severity::Note => self.notes += 1,
        }
        if level == Severity::Note && !self.args.notes {
            return;
        }
        let line = if self.args.json {
            format!(
                "{}\n{}",
                if self.printed > 0 { "," } else { "" },
                one_line(as_json(finding))
            )
        } else {
            format!(
                "{:<7}  {}: {}\n",
                level.name(),
                finding.key,
                one_line(finding.message.as_str())
            )
        };
        self.printed += 1;
        if let Some(progress) = &mut self.progress {
            progress.end();
        }
        self.print(&line);
    }

    /// Prints `text`. Stops the check if that fails, as when the reader has ended.
    fn print(&mut self, text: &str) {
        if self.broken.is_none()
            && let Err(e) = stdio::output().write_all(text.as_bytes())
        {
            self.broken = Some(e);
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn end(mut self, summary: &Summary) -> CommandResult {
        if let Some(progress) = &mut self.progress {
            progress.end();
        }
        let text = if self.args.json {
            self.json_end(summary)
        } else {
            self.last_line(summary)
        };
        self.print(&text);
        if let Err(e) = stdio::output().flush() {
            self.broken.get_or_insert(e);
        }
        stdio::ended(self.broken.map_or(Ok(()), Err))?;
        match self.errors + self.warnings {
            0 if summary.complete => Ok(()),
            _ => Err(CommandFailure::failed("")),
        }
    }

    fn last_line(&self, summary: &Summary) -> String {
        let findings = match self.errors + self.warnings {
            0 => "no findings".to_string(),
            n => plural(n, "finding"),
        };
        let notes = match self.notes {
            0 => String::new(),
            n if self.args.notes => format!(", {}", plural(n, "note")),
            n => format!(", {} (--notes shows them)", plural(n, "note")),
        };
        let looked_at = format!(
            "{}, {}, {}",
            plural(summary.arrays, "array"),
            plural(summary.chunks, "chunk"),
            size::show(summary.bytes)
        );
        let until = if summary.complete {
            ""
        } else if self.stop.load(Ordering::Relaxed) {
            "interrupted after "
        } else {
            "incomplete, since groups and arrays are not known: "
        };
        format!("{until}{looked_at}: {findings}{notes}\n")
    }

    fn json_end(&self, summary: &Summary) -> String {
        let line_end = if self.printed > 0 { "\n" } else { "" };
        let totals = json::write(&json!({
            "groups": summary.groups,
            "arrays": summary.arrays,
            "chunks": summary.chunks,
            "bytes": summary.bytes,
            "errors": self.errors,
            "warnings": self.warnings,
            "notes": self.notes,
            "deep": self.args.deep,
            "complete": summary.complete,
        }));
        format!("{line_end}],{}\n", totals.trim_start_matches('{'))
    }
}

fn plural(n: u64, what: &str) -> String {
    format!("{} {what}{}", size::count(n), if n == 1 { "" } else { "s" })
}

fn as_json(finding: &Finding) -> String {
    json::write(&json!({
        "level": finding.fault.level().name(),
        "path": format!("/{}", finding.key.as_str()),
        "kind": finding.fault.name(),
        "message": finding.message.as_str(),
    }))
}
