//! Finds the credentials of S3 requests, in the order of the AWS command line: keys in the environment, then the
//! profile, then the role of the machine. This module sends no requests to buckets. Messages name profiles,
//! and never show keys, tokens or commands.

use super::credential_process::{self, ProcessKeys};
use super::profile::{Profile, variable};
use crate::error::{Error, Kind, Result};
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Mutex;

/// Time before their end at which keys are replaced, as by the SDKs of AWS.
const EARLY: Duration = Duration::from_secs(300);

/// Pause after a failure to get keys. Requests that waited for them fail at once.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Minimum age of keys from a file before a refusal makes zarrfs read the file again.
const FILE_AGE: Duration = Duration::from_secs(1);

/// Minimum age of keys from a program before a refusal runs it again; a program takes longer than a file.
const PROCESS_AGE: Duration = Duration::from_secs(10);

/// Where credentials come from.
pub(super) enum AwsCredentials {
    /// Keys of the environment, which never change.
    Fixed(Arc<AwsCredential>),
    /// A profile, which is read again when a server refuses its keys.
    Profile(ProfileKeys),
    /// A role of the machine or of a token. `object_store` asks for its keys, and again before they expire.
    Role(AwsCredentialProvider),
}

impl AwsCredentials {
    /// Returns the credentials for a request.
    pub async fn current(&self) -> Result<Arc<AwsCredential>> {
        match self {
            AwsCredentials::Fixed(credential) => Ok(credential.clone()),
            AwsCredentials::Profile(keys) => keys.current().await,
            AwsCredentials::Role(role) => {
                let credential = role.get_credential().await.map_err(|e| failed_role(&e))?;
                checked(&credential).map(|()| credential)
            }
        }
    }

    /// Returns credentials other than those that a server has refused, if there are any now.
    pub async fn instead_of(&self, refused: &AwsCredential) -> Option<Arc<AwsCredential>> {
        match self {
            AwsCredentials::Profile(keys) => keys.instead_of(refused).await,
            AwsCredentials::Fixed(_) | AwsCredentials::Role(_) => None,
        }
    }
}

fn failed_role(error: &object_store::Error) -> Error {
    match super::cloud::request_error_of(error) {
        Some(failure) => failure.clone().into_error(),
        None => denied(super::cloud::line_of(error)),
    }
}

/// What a profile says about its keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProfileSource {
    Keys(AwsCredential),
    /// The command line of a program that prints keys.
    Process(String),
    /// A role that AWS grants to the holder of a token file.
    WebIdentity {
        token_file: String,
        role: String,
        session: Option<String>,
    },
    /// Nothing.
    Nothing,
}

/// Settings of a profile that uses IAM Identity Center.
const SSO: [&str; 2] = ["sso_account_id", "sso_role_name"];

/// Returns where the keys of a profile come from. As in the AWS command line, the order is: role, web identity, SSO, keys of
/// the file for credentials, program, keys of the other file.
///
/// # Errors
///
/// EACCES if the profile is missing, incomplete, or needs what zarrfs cannot do.
pub(super) fn source_of(profile: &Profile) -> Result<ProfileSource> {
    let failed = |e: Error| e.context(format!("AWS profile {}", profile.name));
    if profile.is_missing() {
        return Err(failed(denied("there is no such profile; check AWS_PROFILE and the files in ~/.aws")));
    }
    let (role, token_file) = (profile.get("role_arn"), profile.get("web_identity_token_file"));
    match (role, token_file) {
        (Some(role), Some(token_file)) => {
            let session = profile.get("role_session_name").map(str::to_string);
            return Ok(ProfileSource::WebIdentity { token_file: token_file.into(), role: role.into(), session });
        }
        (Some(_), None) => return Err(failed(unsupported(profile, "role_arn", ""))),
        (None, Some(_)) => return Err(failed(denied("web_identity_token_file without role_arn"))),
        (None, None) => {}
    }
    if SSO.iter().any(|name| profile.get(name).is_some()) {
        return Err(failed(unsupported(profile, "SSO (IAM Identity Center)", "aws sso login")));
    }
    if profile.get("login_session").is_some() {
        return Err(failed(unsupported(profile, "login_session", "aws login")));
    }
    let of_credentials = keys(|name| profile.of_credentials(name)).map_err(failed)?;
    let process = || profile.get("credential_process").map(|command| ProfileSource::Process(command.to_string()));
    match of_credentials.map(ProfileSource::Keys).or_else(process) {
        Some(source) => Ok(source),
        None => {
            let of_config = keys(|name| profile.of_config(name)).map_err(failed)?;
            Ok(of_config.map_or(ProfileSource::Nothing, ProfileSource::Keys))
        }
    }
}

/// Returns the error for a way to get keys that only the AWS command line knows, and how to use it from here.
fn unsupported(profile: &Profile, way: &str, login: &str) -> Error {
    let name = &profile.name;
    let first = if login.is_empty() { String::new() } else { format!("run `{login} --profile {name}`, then ") };
    denied(format!(
        "zarrfs does not support {way}; {first}`eval \"$(aws configure export-credentials --profile {name} --format env)\"`, \
         or for lasting mounts choose another profile with the line `credential_process = aws configure \
         export-credentials --profile {name}`"
    ))
}

/// Returns the keys among settings.
fn keys<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<Option<AwsCredential>> {
    let [id, secret] = ["aws_access_key_id", "aws_secret_access_key"].map(&get);
    let Some(id) = id else { return Ok(None) };
    let secret = secret.ok_or_else(|| denied("aws_access_key_id without aws_secret_access_key"))?;
    let token = get("aws_session_token").or_else(|| get("aws_security_token")).map(str::to_string);
    let credential = AwsCredential { key_id: id.into(), secret_key: secret.into(), token };
    checked(&credential).map(|()| Some(credential))
}

/// Checks that keys can be part of a header.
pub(super) fn checked(credential: &AwsCredential) -> Result<()> {
    let parts = [&credential.key_id, &credential.secret_key];
    let is_printable = |text: &String| text.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
    match parts.into_iter().chain(&credential.token).all(is_printable) {
        true => Ok(()),
        false => Err(denied("the keys have characters that keys do not have, such as spaces")),
    }
}

/// Returns whether the environment has a token for a role.
pub(super) fn has_web_identity() -> bool {
    variable("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() && variable("AWS_ROLE_ARN").is_some()
}

/// The keys of a profile.
pub(super) struct ProfileKeys {
    /// Reads the files with profiles.
    load: fn(&Path) -> Profile,
    /// Where zarrfs was started, which relative paths are relative to. A mount in the background leaves it.
    directory: PathBuf,
    /// Maximum duration of reading files, and of a program.
    limit: Duration,
    state: Mutex<ProfileState>,
}

#[derive(Default)]
struct ProfileState {
    loaded: Option<LoadedKeys>,
    failed: Option<(Instant, Error)>,
}

struct LoadedKeys {
    credential: Arc<AwsCredential>,
    at: Instant,
    of_process: bool,
    /// When they are replaced, and when they end to be valid.
    times: Option<(SystemTime, SystemTime)>,
}

impl LoadedKeys {
    fn of_file(credential: AwsCredential) -> Self {
        LoadedKeys { credential: Arc::new(credential), at: Instant::now(), of_process: false, times: None }
    }

    fn of_process(keys: ProcessKeys, now: SystemTime) -> Self {
        // at the latest after three quarters of their time, so that keys that are valid for minutes have uses, too
        let times = keys.expires.map(|expires| {
            let left = expires.duration_since(now).unwrap_or_default();
            (expires - EARLY.min(left / 4), expires)
        });
        LoadedKeys { credential: Arc::new(keys.credential), at: Instant::now(), of_process: true, times }
    }
}

impl ProfileKeys {
    /// Creates the keys of the profile that the environment chooses. They are read when they are needed.
    pub fn new(load: fn(&Path) -> Profile, directory: PathBuf, limit: Duration) -> Self {
        ProfileKeys { load, directory, limit, state: Mutex::default() }
    }

    async fn current(&self) -> Result<Arc<AwsCredential>> {
        let mut state = self.state.lock().await;
        let now = SystemTime::now();
        let (kept, is_valid) = match &state.loaded {
            None => (None, false),
            Some(keys) if keys.times.is_none_or(|(renewal, _)| now < renewal) => return Ok(keys.credential.clone()),
            Some(keys) => (Some(keys.credential.clone()), keys.times.is_some_and(|(_, end)| now < end)),
        };
        let was_failed = state.failed.is_some();
        match (self.load(&mut state).await, kept) {
            (Err(e), Some(kept)) if is_valid => {
                if !was_failed {
                    log::warn!("{e}; using the previous keys until they expire");
                }
                Ok(kept)
            }
            (loaded, _) => loaded,
        }
    }

    async fn instead_of(&self, refused: &AwsCredential) -> Option<Arc<AwsCredential>> {
        let mut state = self.state.lock().await;
        if let Some(keys) = &state.loaded {
            if *keys.credential != *refused {
                // another request was refused before
                return Some(keys.credential.clone());
            }
            if keys.at.elapsed() < if keys.of_process { PROCESS_AGE } else { FILE_AGE } {
                return None;
            }
        }
        let was_failed = state.failed.is_some();
        match self.load(&mut state).await {
            Ok(credential) if *credential != *refused => {
                log::info!("the server refused the keys of the AWS profile; using its new keys");
                Some(credential)
            }
            Ok(_) => None,
            Err(e) => {
                if !was_failed {
                    log::warn!("{e}");
                }
                None
            }
        }
    }

    /// Reads the profile, and runs its program. Requests wait for each other here, and do so once.
    async fn load(&self, state: &mut ProfileState) -> Result<Arc<AwsCredential>> {
        if let Some((at, e)) = &state.failed
            && at.elapsed() < AFTER_FAILURE
        {
            return Err(e.clone());
        }
        match self.read().await {
            Ok(keys) => {
                state.failed = None;
                let credential = keys.credential.clone();
                state.loaded = Some(keys);
                Ok(credential)
            }
            Err(e) => {
                state.failed = Some((Instant::now(), e.clone()));
                Err(e)
            }
        }
    }

    async fn read(&self) -> Result<LoadedKeys> {
        // a home directory may be on a server that does not answer
        let (load, directory) = (self.load, self.directory.clone());
        let reading = tokio::task::spawn_blocking(move || load(&directory));
        let reading = tokio::time::timeout(self.limit, reading).await;
        let profile = reading.map_err(|_| denied("the files with AWS profiles cannot be read in time (--timeout)"))?;
        let profile = profile.map_err(|e| denied(e.to_string()))?;
        match source_of(&profile)? {
            ProfileSource::Keys(credential) => Ok(LoadedKeys::of_file(credential)),
            ProfileSource::Process(command) => {
                let failed = |e: Error| e.context(format!("AWS profile {}: credential_process", profile.name));
                let keys = credential_process::run(&command, &self.directory, self.limit).await;
                let keys = keys.map_err(failed)?;
                checked(&keys.credential).map_err(failed)?;
                Ok(LoadedKeys::of_process(keys, SystemTime::now()))
            }
            ProfileSource::WebIdentity { .. } | ProfileSource::Nothing => {
                Err(denied(format!("AWS profile {}: its keys are gone", profile.name)))
            }
        }
    }
}

fn denied(message: impl Into<String>) -> Error {
    Error::new(Kind::System(libc::EACCES), message)
}

#[cfg(test)]
mod tests;
