//! Finds the credentials of S3 requests, in the order of the AWS command line: keys in the
//! environment, then the profile, then the role of the machine. This module sends no requests to
//! buckets. Messages name profiles, and never show keys, tokens or commands.

use super::credential_process;
use super::profile::Profile;
use super::renewed_keys::{KeyOrigin, KeySource, NewKeys};
use super::runtime;
use async_trait::async_trait;
use object_store::aws::AwsCredential;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::outside::{ANSWER_LIMIT, ask_outside};

/// The source of keys that a profile names. The type has no `Debug`, so that nothing prints keys or
/// commands.
#[derive(PartialEq, Eq)]
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
    /// The profile names no source.
    Nothing,
}

/// Settings of a profile that uses IAM Identity Center.
const SSO: [&str; 2] = ["sso_account_id", "sso_role_name"];

/// Returns the source of the keys of a profile. As in the AWS command line, the order is: role, web
/// identity, SSO, keys of the file for credentials, program, keys of the other file.
///
/// # Errors
///
/// EACCES if the profile is missing, incomplete, or names a source that zarrfs does not support.
pub(super) fn source_of(profile: &Profile) -> Result<ProfileSource> {
    find_source(profile).map_err(|e| e.context(format!("AWS profile {}", profile.name)))
}

fn find_source(profile: &Profile) -> Result<ProfileSource> {
    if profile.is_missing() {
        let files = match profile.missing_files.as_slice() {
            [] => String::new(),
            missing => format!(" ({})", missing.join(", ")),
        };
        return Err(Error::denied(format!(
            "there is no such profile; check AWS_PROFILE and the files in ~/.aws{files}"
        )));
    }
    let role = profile.get("role_arn");
    let token_file = profile.get("web_identity_token_file");
    match (role, token_file) {
        (Some(role), Some(token_file)) => {
            return Ok(ProfileSource::WebIdentity {
                token_file: token_file.into(),
                role: role.into(),
                session: profile.get("role_session_name").map(str::to_string),
            });
        }
        (Some(_), None) => return Err(unsupported(profile, "role_arn", "")),
        (None, Some(_)) => return Err(Error::denied("web_identity_token_file without role_arn")),
        (None, None) => {}
    }
    if SSO.iter().any(|name| profile.get(name).is_some()) {
        let way = "SSO (IAM Identity Center)";
        return Err(unsupported(profile, way, "aws sso login"));
    }
    if profile.get("login_session").is_some() {
        return Err(unsupported(profile, "login_session", "aws login"));
    }
    if let Some(keys) = keys(|name| profile.of_credentials(name))? {
        return Ok(ProfileSource::Keys(keys));
    }
    if let Some(command) = profile.get("credential_process") {
        return Ok(ProfileSource::Process(command.to_string()));
    }
    let keys = keys(|name| profile.of_config(name))?;
    Ok(keys.map_or(ProfileSource::Nothing, ProfileSource::Keys))
}

/// Returns the error for a source of keys that only the AWS command line supports. The message says
/// how to use its keys here.
fn unsupported(profile: &Profile, way: &str, login: &str) -> Error {
    let name = &profile.name;
    let first = if login.is_empty() {
        String::new()
    } else {
        format!("run `{login} --profile {name}`, then ")
    };
    Error::denied(format!(
        "zarrfs does not support {way}; {first}`eval \"$(aws configure export-credentials --profile {name} --format env)\"`, \
         or for lasting mounts choose another profile with the line `credential_process = aws configure \
         export-credentials --profile {name}`"
    ))
}

/// Returns the keys among settings.
fn keys<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<Option<AwsCredential>> {
    let [id, secret] = ["aws_access_key_id", "aws_secret_access_key"].map(&get);
    let Some(id) = id else { return Ok(None) };
    let secret =
        secret.ok_or_else(|| Error::denied("aws_access_key_id without aws_secret_access_key"))?;
    let token = get("aws_session_token")
        .or_else(|| get("aws_security_token"))
        .map(str::to_string);
    let credential = AwsCredential {
        key_id: id.into(),
        secret_key: secret.into(),
        token,
    };
    checked(&credential).map(|()| Some(credential))
}

/// Checks that keys can be part of a header.
pub(super) fn checked(credential: &AwsCredential) -> Result<()> {
    let parts = [&credential.key_id, &credential.secret_key];
    let mut parts = parts.into_iter().chain(&credential.token);
    if parts.all(|text| text.bytes().all(|byte| byte.is_ascii_graphic())) {
        Ok(())
    } else {
        Err(Error::denied(
            "the keys have characters that keys do not have, such as spaces",
        ))
    }
}

/// A source of keys: the profile that the environment chooses.
pub(super) struct ProfileKeys {
    /// The directory in which zarrfs was started, to resolve relative paths. A background mount
    /// changes its working directory.
    pub directory: PathBuf,
    /// Maximum duration of reading the files, and of running the program.
    pub limit: Duration,
}

impl ProfileKeys {
    async fn keys_of(&self, profile: &Profile) -> Result<NewKeys> {
        match source_of(profile)? {
            ProfileSource::Keys(credential) => Arc::new(credential).read().await,
            ProfileSource::Process(command) => {
                let keys = credential_process::run(&command, &self.directory, self.limit).await;
                keys.and_then(|keys| checked(&keys.credential).map(|()| keys))
                    .map_err(|e| {
                        e.context(format!("AWS profile {}: credential_process", profile.name))
                    })
            }
            ProfileSource::WebIdentity { .. } | ProfileSource::Nothing => Err(Error::denied(
                format!("AWS profile {}: its keys are gone", profile.name),
            )),
        }
    }
}

#[async_trait]
impl KeySource for ProfileKeys {
    async fn read(&self) -> Result<NewKeys> {
        match ask_keys(self.limit).await {
            Some(keys) => keys,
            None => self.read_here().await,
        }
    }
}

impl ProfileKeys {
    /// Reads the keys in this process.
    pub async fn read_here(&self) -> Result<NewKeys> {
        // a home directory may be on a server that does not answer
        let directory = self.directory.clone();
        let reading = tokio::task::spawn_blocking(move || Profile::load(&directory));
        let reading = tokio::time::timeout(self.limit, reading).await;
        let profile = reading.map_err(|_| {
            Error::denied("the files with AWS profiles cannot be read in time (--timeout)")
        })?;
        self.keys_of(&profile.map_err(|e| Error::denied(e.to_string()))?)
            .await
    }
}

/// The service outside a sandbox that runs [`read_keys`].
pub const READ_KEYS: &str = "read-keys";

/// Reads the keys of the profile that the environment chooses, and returns them as JSON. Relative
/// paths begin at `directory`.
///
/// # Errors
///
/// EACCES if the profile has none, its program fails, or takes longer than `limit`, a little-endian
/// number of milliseconds.
pub fn read_keys(directory: PathBuf, limit: &[u8]) -> Result<Vec<u8>> {
    let limit = limit.try_into().map_err(|_| Error::system(libc::EINVAL))?;
    let limit = Duration::from_millis(u64::from_le_bytes(limit));
    let source = ProfileKeys { directory, limit };
    let keys = runtime::block_on(async move { source.read_here().await })?;
    let expires = keys.expires.map(|end| {
        let end: chrono::DateTime<chrono::Utc> = end.into();
        end.to_rfc3339_opts(chrono::SecondsFormat::Nanos, true)
    });
    let text = json!({
        "Version": 1,
        "AccessKeyId": keys.credential.key_id,
        "SecretAccessKey": keys.credential.secret_key,
        "SessionToken": keys.credential.token,
        "Expiration": expires,
        "IsOfFile": keys.origin == KeyOrigin::File,
    });
    Ok(text.to_string().into_bytes())
}

/// Asks the process outside for the keys. Returns `None` if this process is in no sandbox.
async fn ask_keys(limit: Duration) -> Option<Result<NewKeys>> {
    let asked = tokio::task::spawn_blocking(move || {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        // the other process has the same limit, and stops its program
        ask_outside(
            READ_KEYS,
            &millis.to_le_bytes(),
            limit.saturating_add(ANSWER_LIMIT),
        )
    });
    match asked.await.map_err(runtime::interrupted) {
        Ok(None) => None,
        Ok(Some(answer)) => Some(answer.and_then(|answer| parse_keys(&answer.bytes))),
        Err(e) => Some(Err(e)),
    }
}

fn parse_keys(text: &[u8]) -> Result<NewKeys> {
    let keys = credential_process::parse(text, std::time::SystemTime::now())?;
    let parsed: Option<serde_json::Value> = serde_json::from_slice(text).ok();
    let is_of_file = parsed.is_some_and(|parsed| parsed["IsOfFile"] == true);
    let origin = if is_of_file {
        KeyOrigin::File
    } else {
        KeyOrigin::Program
    };
    Ok(NewKeys { origin, ..keys })
}

#[cfg(test)]
mod tests;
