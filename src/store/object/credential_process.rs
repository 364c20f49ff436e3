//! The `credential_process` of an AWS profile: a program that prints keys as JSON. Its output is a secret and never
//! appears in messages.

use crate::error::{Error, Result};
use chrono::DateTime;
use object_store::aws::AwsCredential;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Maximum size of what the program prints, in bytes. Session tokens have up to a few thousand.
const MAX_OUTPUT: u64 = 64 << 10;

/// Maximum number of bytes of the program's messages that an error shows.
const MAX_SHOWN: usize = 300;

/// Keys, and when they end to be valid.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProcessKeys {
    pub credential: AwsCredential,
    pub expires: Option<SystemTime>,
}

/// Runs `command` with the shell, as the SDKs of AWS do, and returns the keys that it prints. It is killed with all
/// processes that it started if it takes longer than `limit`.
///
/// # Errors
///
/// EACCES with what the program has written to standard error.
pub(super) async fn run(command: &str, limit: Duration) -> Result<ProcessKeys> {
    let output = timeout(limit, output_of(command)).await;
    let late = || format!("it has not ended after {:.1} s (--timeout), and was killed", limit.as_secs_f32());
    let (status, output, said) = output.map_err(|_| denied(late()))??;
    match status.success() {
        true => parse(&output, SystemTime::now()),
        false => Err(denied(format!("{status}: {}", shown(&said)))),
    }
}

async fn output_of(command: &str) -> Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        // a program that asks for a password ends, or is killed at the limit
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let mut group = ProcessGroup(group);
    let (output, said) = (child.stdout.take().map(read), child.stderr.take().map(read));
    let status = child.wait().await?;
    // its number may be that of another process from now on
    group.0 = None;
    Ok((status, finished(output).await, finished(said).await))
}

/// Reads a pipe to its end, or up to the limit. Reading goes on beside the other pipe, since a program that cannot
/// write does not end.
fn read(pipe: impl AsyncRead + Send + Unpin + 'static) -> JoinHandle<Vec<u8>> {
    tokio::spawn(async move {
        let mut bytes = Vec::new();
        // what was read before an error is parsed or shown
        let _ = pipe.take(MAX_OUTPUT).read_to_end(&mut bytes).await;
        bytes
    })
}

async fn finished(reading: Option<JoinHandle<Vec<u8>>>) -> Vec<u8> {
    match reading {
        Some(reading) => reading.await.unwrap_or_default(),
        None => Vec::new(),
    }
}

/// The processes of the command, which are killed when this is dropped.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // an error means that they have ended
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Parses the output: an object with `Version` 1, `AccessKeyId`, `SecretAccessKey`, and perhaps `SessionToken` and
/// `Expiration`.
fn parse(output: &[u8], now: SystemTime) -> Result<ProcessKeys> {
    let wrong = |what: &str| denied(format!("its output {what}"));
    // the error of the parser could quote a secret
    let parsed: Value = serde_json::from_slice(output).map_err(|_| wrong("is not JSON"))?;
    if parsed.get("Version").and_then(Value::as_u64) != Some(1) {
        return Err(wrong("does not have \"Version\": 1"));
    }
    let text = |name: &str| parsed.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let needed = |name: &str| text(name).map(str::to_string).ok_or_else(|| wrong(&format!("has no {name}")));
    let time = text("Expiration").map(DateTime::parse_from_rfc3339).transpose();
    let expires = time.map_err(|_| wrong("has an Expiration that is not a time"))?.map(SystemTime::from);
    if expires.is_some_and(|expires| expires <= now) {
        return Err(wrong("has keys that have expired already"));
    }
    let credential = AwsCredential {
        key_id: needed("AccessKeyId")?,
        secret_key: needed("SecretAccessKey")?,
        token: text("SessionToken").map(str::to_string),
    };
    Ok(ProcessKeys { credential, expires })
}

/// Returns the end of what the program has said, on one line.
fn shown(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let line = lines.join("; ");
    let cut = line.char_indices().rev().take(MAX_SHOWN).last().map_or(0, |(at, _)| at);
    match line.is_empty() {
        true => "it says nothing".to_string(),
        false => line[cut..].to_string(),
    }
}

fn denied(message: impl Into<String>) -> Error {
    Error::new(crate::error::Kind::System(libc::EACCES), message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::object::runtime;
    use std::time::Instant;

    fn run_for(command: &str, limit: Duration) -> Result<ProcessKeys> {
        runtime::block_on(run(command, limit))
    }

    const KEYS: &str = r#"{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "secret""#;

    #[test]
    fn keys_and_their_end_are_parsed() {
        let keys = run_for(&format!("echo '{KEYS}}}'"), Duration::from_secs(10)).unwrap();
        let expected = AwsCredential { key_id: "A".into(), secret_key: "secret".into(), token: None };
        assert_eq!(keys, ProcessKeys { credential: expected, expires: None });
        let text = format!(r#"{KEYS}, "SessionToken": "T", "Expiration": "2024-02-29T23:59:59Z"}}"#);
        let keys = parse(text.as_bytes(), SystemTime::UNIX_EPOCH).unwrap();
        let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_251_199);
        assert_eq!((keys.credential.token.as_deref(), keys.expires), (Some("T"), Some(expires)));
        assert!(parse(text.as_bytes(), expires).unwrap_err().message().contains("expired"));
    }

    #[test]
    fn wrong_output_is_refused_without_its_content() {
        for output in [
            "secret",
            r#"{"Version": 2, "AccessKeyId": "secret", "SecretAccessKey": "secret"}"#,
            r#"{"Version": 1, "AccessKeyId": "secret"}"#,
            r#"{"Version": 1, "AccessKeyId": {"secret": 1}, "SecretAccessKey": "secret"}"#,
            r#"["secret"]"#,
            r#"{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "B", "Expiration": "secret"}"#,
        ] {
            let error = parse(output.as_bytes(), SystemTime::UNIX_EPOCH).unwrap_err();
            assert!(error.errno() == libc::EACCES && !error.message().contains("secret\""), "{error}");
        }
    }

    #[test]
    fn a_failure_shows_what_the_program_says() {
        let error = run_for("echo secret; echo 'token\nmissing' >&2; exit 3", Duration::from_secs(10)).unwrap_err();
        assert_eq!(error.message(), "exit status: 3: token; missing");
        let error = run_for("head -c 300000 /dev/zero | tr '\\0' x >&2; exit 1", Duration::from_secs(10)).unwrap_err();
        assert!(error.message().len() < 400, "{error}");
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let begun = Instant::now();
        let command = format!("sleep 100 & echo $! > {}; cat; wait", file.display());
        let error = run_for(&command, Duration::from_millis(500)).unwrap_err();
        assert!(error.message().contains("not ended after 0.5 s"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(5));
        let started = std::fs::read_to_string(&file).unwrap();
        let is_running = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", started.trim())).unwrap_or_default();
            stat.contains("(sleep) S")
        };
        while is_running() {
            assert!(begun.elapsed() < Duration::from_secs(5), "its processes are left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn endless_output_is_cut_off() {
        let error = run_for("yes secret", Duration::from_secs(20)).unwrap_err();
        assert!(!error.message().contains("secret") && !error.message().contains("--timeout"), "{error}");
    }
}
