//! Finds the credentials of S3 requests, in the order of the AWS command line: keys in the
//! environment, then the profile, then the role of the machine. This module sends no requests to
//! buckets. Messages name profiles, and never show keys, tokens or commands.

use super::credential_process::{self, ProcessKeys};
use super::key_renewal::{KeyOrigin, Refusal};
use super::profile::{Profile, variable};
use super::renewed_keys::{KeySource, NewKeys, RenewedKeys};
use crate::error::{Error, Result};
use async_trait::async_trait;
use object_store::aws::AwsCredential;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The source of credentials.
pub(super) enum AwsCredentials {
    /// Keys of the environment, which never change.
    Fixed(Arc<AwsCredential>),
    /// Keys of a profile or a role, which are read again when they expire or are refused.
    Renewed(RenewedKeys),
}

impl AwsCredentials {
    /// Returns the credentials for a request.
    pub async fn current(&self) -> Result<Arc<AwsCredential>> {
        match self {
            AwsCredentials::Fixed(credential) => Ok(credential.clone()),
            AwsCredentials::Renewed(keys) => keys.current().await,
        }
    }

    /// Returns credentials other than those that a server has refused, if there are any now.
    pub async fn instead_of(
        &self,
        refused: &AwsCredential,
        refusal: Refusal,
    ) -> Option<Arc<AwsCredential>> {
        match self {
            AwsCredentials::Fixed(_) => None,
            AwsCredentials::Renewed(keys) => keys.instead_of(refused, refusal).await,
        }
    }

    /// Records that the server accepts credentials of [`AwsCredentials::instead_of`].
    pub fn record_use(&self) {
        if let AwsCredentials::Renewed(keys) = self {
            keys.record_use();
        }
    }
}

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
    let failed = |e: Error| e.context(format!("AWS profile {}", profile.name));
    if profile.is_missing() {
        let files = match profile.missing_files() {
            [] => String::new(),
            missing => format!(" ({})", missing.join(", ")),
        };
        return Err(failed(Error::denied(format!(
            "there is no such profile; check AWS_PROFILE and the files in ~/.aws{files}"
        ))));
    }
    let role = profile.get("role_arn");
    let token_file = profile.get("web_identity_token_file");
    match (role, token_file) {
        (Some(role), Some(token_file)) => {
            let session = profile.get("role_session_name").map(str::to_string);
            return Ok(ProfileSource::WebIdentity {
                token_file: token_file.into(),
                role: role.into(),
                session,
            });
        }
        (Some(_), None) => return Err(failed(unsupported(profile, "role_arn", ""))),
        (None, Some(_)) => {
            return Err(failed(Error::denied(
                "web_identity_token_file without role_arn",
            )));
        }
        (None, None) => {}
    }
    if SSO.iter().any(|name| profile.get(name).is_some()) {
        return Err(failed(unsupported(
            profile,
            "SSO (IAM Identity Center)",
            "aws sso login",
        )));
    }
    if profile.get("login_session").is_some() {
        return Err(failed(unsupported(profile, "login_session", "aws login")));
    }
    let of_credentials = keys(|name| profile.of_credentials(name)).map_err(failed)?;
    let process = || {
        profile
            .get("credential_process")
            .map(|command| ProfileSource::Process(command.to_string()))
    };
    match of_credentials.map(ProfileSource::Keys).or_else(process) {
        Some(source) => Ok(source),
        None => {
            let of_config = keys(|name| profile.of_config(name)).map_err(failed)?;
            Ok(of_config.map_or(ProfileSource::Nothing, ProfileSource::Keys))
        }
    }
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
    let is_printable = |text: &String| text.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
    if parts.into_iter().chain(&credential.token).all(is_printable) {
        Ok(())
    } else {
        Err(Error::denied(
            "the keys have characters that keys do not have, such as spaces",
        ))
    }
}

/// Returns whether the environment has a token for a role.
pub(super) fn has_web_identity() -> bool {
    variable("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() && variable("AWS_ROLE_ARN").is_some()
}

/// A source of keys: the profile that the environment chooses.
pub(super) struct ProfileKeys {
    /// The directory in which zarrfs was started, to resolve relative paths. A background mount
    /// changes its working directory.
    directory: PathBuf,
    /// Maximum duration of reading the files, and of running the program.
    limit: Duration,
}

impl ProfileKeys {
    /// Creates a source for the profile that the environment chooses.
    pub fn new(directory: PathBuf, limit: Duration) -> Self {
        ProfileKeys { directory, limit }
    }

    async fn keys_of(&self, profile: &Profile) -> Result<NewKeys> {
        match source_of(profile)? {
            ProfileSource::Keys(credential) => Ok(NewKeys {
                credential: Arc::new(credential),
                expires: None,
                origin: KeyOrigin::File,
            }),
            ProfileSource::Process(command) => {
                let failed = |e: Error| {
                    e.context(format!("AWS profile {}: credential_process", profile.name))
                };
                let ProcessKeys {
                    credential,
                    expires,
                } = credential_process::run(&command, &self.directory, self.limit)
                    .await
                    .map_err(failed)?;
                checked(&credential).map_err(failed)?;
                Ok(NewKeys {
                    credential: Arc::new(credential),
                    expires,
                    origin: KeyOrigin::Program,
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

#[cfg(test)]
mod tests;
