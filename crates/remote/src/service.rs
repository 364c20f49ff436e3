//! The clients of S3, Google Cloud Storage and Azure. Endpoint, region and credentials come from
//! options, environment variables and profiles, as users of the command lines of these clouds
//! expect.

mod azure;

pub(super) use azure::{azure, azure_settings, uses_emulator};

use super::answer_headers::text;
use super::cloud::Client;
use super::connector::Connector;
use super::credentials::{ProfileKeys, ProfileSource, checked, source_of};
use super::profile::{Profile, variable};
use super::renewed_keys::RenewedKeys;
use super::role_keys::RoleKeys;
use super::signer::{Signer, is_region};
use super::transport::{BUCKET_REGION, ServerRequest, Transport};
use super::{ObjectOptions, runtime, user_headers};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{RetryConfig, StaticCredentialProvider};
use reqwest::header::HeaderMap;
use reqwest::{Method, Url};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::stats::Stats;

/// Region of a bucket if no other source names one, as in the AWS command line.
const REGION: &str = "us-east-1";

/// Settings that name the file with the token of a role or of a container.
pub(super) const TOKEN_FILES: [AmazonS3ConfigKey; 2] = [
    AmazonS3ConfigKey::WebIdentityTokenFile,
    AmazonS3ConfigKey::ContainerAuthorizationTokenFile,
];

/// Settings that name the file with the key of a Google account.
pub(super) const GOOGLE_FILES: [GoogleConfigKey; 2] = [
    GoogleConfigKey::ServiceAccount,
    GoogleConfigKey::ApplicationCredentials,
];

/// Creates a client of an S3 bucket.
pub(super) fn s3(
    bucket: &str,
    options: &ObjectOptions,
    stats: &Arc<Stats>,
) -> Result<Arc<dyn Client>> {
    // a background mount changes it later
    let directory = std::env::current_dir().unwrap_or_default();
    let profile = Profile::load(&directory);
    let mut builder = AmazonS3Builder::from_env();
    let endpoint = options
        .endpoint_url
        .clone()
        .or_else(|| setting(&builder, AmazonS3ConfigKey::S3Endpoint))
        .or_else(|| setting(&builder, AmazonS3ConfigKey::Endpoint))
        .or_else(|| profile.get("endpoint_url").map(str::to_string));
    let region = match (&options.region, &endpoint) {
        (Some(region), _) => Some(region.clone()),
        (None, None) => region_of(bucket, options)?,
        (None, Some(_)) => None,
    };
    let region = region
        .or_else(|| setting(&builder, AmazonS3ConfigKey::Region))
        .or_else(|| variable("AWS_DEFAULT_REGION"))
        .or_else(|| profile.get("region").map(str::to_string))
        .unwrap_or_else(|| REGION.to_string());
    if !is_region(&region) {
        return Err(Error::invalid(format!(
            "{region:?} can't be the name of a region"
        )));
    }
    let mut hosts = vec![
        format!("s3.{region}.amazonaws.com"),
        format!("{bucket}.s3.{region}.amazonaws.com"),
    ];
    if let Some(endpoint) = &endpoint {
        hosts = vec![host_of(endpoint)?];
        // the variable for S3 takes precedence over the one for all services
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    let is_anonymous = options.anonymous || is_set(&builder, AmazonS3ConfigKey::SkipSignature);
    let signs_sessions = is_set(&builder, AmazonS3ConfigKey::S3Express);
    let connector = connector(bucket, hosts, options, stats)?;
    builder = builder
        .with_bucket_name(bucket)
        .with_region(&region)
        .with_disable_bulk_delete(true)
        .with_retry(no_retries())
        .with_http_connector(connector.clone());
    let builder = if is_anonymous {
        builder
            .with_skip_signature(true)
            .with_http_connector(Signer::new(connector, None, region))
    } else if signs_sessions {
        // `object_store` signs with the key of a session, which it asks for
        with_token_files(builder, &directory)?
    } else {
        let keys = keys_of(&profile, &builder, &connector, directory, options)?;
        let placeholder = Arc::new(StaticCredentialProvider::new(Signer::placeholder()));
        let signer = Signer::new(connector, Some(keys), region);
        builder
            .with_credentials(placeholder)
            .with_http_connector(signer)
    };
    Ok(Arc::new(builder.build().map_err(unusable)?))
}

/// Returns a setting of the environment that is not empty.
fn setting(builder: &AmazonS3Builder, key: AmazonS3ConfigKey) -> Option<String> {
    builder
        .get_config_value(&key)
        .filter(|value| !value.is_empty())
}

/// Returns whether a setting of the environment is on.
fn is_set(builder: &AmazonS3Builder, key: AmazonS3ConfigKey) -> bool {
    setting(builder, key).is_some_and(|value| is_on(&value))
}

/// Returns whether a setting is on, as `object_store` reads it.
pub(super) fn is_on(value: &str) -> bool {
    let value = value.to_ascii_lowercase();
    ["1", "true", "on", "yes", "y"].contains(&value.as_str())
}

/// Finds the keys of S3, in the order of the AWS command line: keys of the environment, a role of
/// the profile, web identity of the environment, the rest of the profile, the container, the
/// machine.
fn keys_of(
    profile: &Profile,
    builder: &AmazonS3Builder,
    connector: &Connector,
    directory: PathBuf,
    options: &ObjectOptions,
) -> Result<RenewedKeys> {
    if let Some(key_id) = setting(builder, AmazonS3ConfigKey::AccessKeyId) {
        let secret_key = setting(builder, AmazonS3ConfigKey::SecretAccessKey).ok_or_else(|| {
            Error::invalid("AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY")
        })?;
        let credential = AwsCredential {
            key_id,
            secret_key,
            token: setting(builder, AmazonS3ConfigKey::Token),
        };
        checked(&credential).map_err(|e| {
            e.context("AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN")
        })?;
        return Ok(RenewedKeys::new(Arc::new(credential)));
    }
    let has_web_identity =
        variable("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() && variable("AWS_ROLE_ARN").is_some();
    let assumes_role =
        profile.get("role_arn").is_some() && profile.get("web_identity_token_file").is_none();
    if has_web_identity && !assumes_role {
        return keys_of_role(builder.clone(), connector, &directory);
    }
    match source_of(profile)? {
        ProfileSource::Keys(_) | ProfileSource::Process(_) => Ok(RenewedKeys::new(ProfileKeys {
            directory,
            limit: options.timeout,
        })),
        ProfileSource::WebIdentity {
            token_file,
            role,
            session,
        } => {
            let mut builder = builder
                .clone()
                .with_config(AmazonS3ConfigKey::WebIdentityTokenFile, token_file)
                .with_config(AmazonS3ConfigKey::RoleArn, role);
            if let Some(session) = session {
                builder = builder.with_config(AmazonS3ConfigKey::RoleSessionName, session);
            }
            keys_of_role(builder, connector, &directory)
        }
        ProfileSource::Nothing => {
            for missing in &profile.missing_files {
                log::warn!("{missing}");
            }
            keys_of_role(builder.clone(), connector, &directory)
        }
    }
}

/// Returns the keys of the role that `builder` names, or else of the container or the machine.
fn keys_of_role(
    builder: AmazonS3Builder,
    connector: &Connector,
    directory: &Path,
) -> Result<RenewedKeys> {
    let builder = with_token_files(builder, directory)?;
    Ok(RenewedKeys::new(RoleKeys::new(builder, connector.clone())?))
}

/// Makes the paths of files with tokens absolute, since each renewal reads them again.
fn with_token_files(mut builder: AmazonS3Builder, directory: &Path) -> Result<AmazonS3Builder> {
    for key in TOKEN_FILES {
        if let Some(path) = setting(&builder, key) {
            let absolute = directory.join(&path).into_os_string();
            let absolute = absolute.into_string().unwrap_or(path);
            check_readable(&key.as_ref().to_ascii_uppercase(), &absolute)?;
            builder = builder.with_config(key, absolute);
        }
    }
    Ok(builder)
}

/// Asks AWS for the region of a bucket, which it reveals even without access.
///
/// Sends the request by a transport of its own: an outage of AWS is not one of the bucket.
fn region_of(bucket: &str, options: &ObjectOptions) -> Result<Option<String>> {
    let Ok(url) = Url::parse(&format!("https://s3.amazonaws.com/{bucket}")) else {
        return Ok(None);
    };
    let timeout = options.timeout.min(Duration::from_secs(10));
    let retries = options.retries.min(1);
    let no_headers = HeaderMap::new();
    let transport = Transport::new(Vec::new(), no_headers, timeout, retries, Arc::default())?;
    let request = ServerRequest::new(Method::HEAD, url);
    let mut body = Vec::new();
    let answer = runtime::block_on(async { Ok(transport.send(&request, &mut body).await) })?;
    match answer {
        Ok(answer) => Ok(text(&answer.headers, &BUCKET_REGION)
            .filter(|region| is_region(region))
            .map(str::to_string)),
        // the request may fail behind a proxy, while another source names the region
        Err(e) => {
            log::debug!("{e}");
            Ok(None)
        }
    }
}

/// Creates a client of a bucket of Google Cloud Storage.
pub(super) fn google(
    bucket: &str,
    options: &ObjectOptions,
    stats: &Arc<Stats>,
) -> Result<Arc<dyn Client>> {
    let mut builder = GoogleCloudStorageBuilder::from_env();
    let emulator = variable("STORAGE_EMULATOR_HOST").map(|host| {
        if host.contains("://") {
            host
        } else {
            format!("http://{host}")
        }
    });
    let mut hosts = vec!["storage.googleapis.com".to_string()];
    if let Some(endpoint) = options.endpoint_url.as_ref().or(emulator.as_ref()) {
        hosts = vec![host_of(endpoint)?];
        builder = builder.with_base_url(endpoint.trim_end_matches('/'));
    }
    if options.anonymous || (options.endpoint_url.is_none() && emulator.is_some()) {
        // a put requires credentials even if it is not signed
        let nobody = GcpCredential {
            bearer: String::new(),
        };
        let credentials = Arc::new(StaticCredentialProvider::new(nobody));
        builder = builder
            .with_skip_signature(true)
            .with_credentials(credentials);
    }
    for path in GOOGLE_FILES
        .iter()
        .filter_map(|key| builder.get_config_value(key))
    {
        check_readable("GOOGLE_APPLICATION_CREDENTIALS", &path)?;
    }
    let client = builder
        .with_bucket_name(bucket)
        .with_retry(no_retries())
        .with_http_connector(connector(bucket, hosts, options, stats)?)
        .build();
    // the error may quote the key
    let why = "the credentials of Google are damaged; check GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT_KEY";
    Ok(Arc::new(client.map_err(|_| Error::invalid(why))?))
}

/// Checks that a file of credentials, which `variable` names, can be read.
///
/// # Errors
///
/// EACCES with the variable and the path.
fn check_readable(variable: &str, path: &str) -> Result<()> {
    let opened = File::open(path).map_err(|e| Error::from(e).context(format!("{variable}={path}")));
    opened.map(drop).map_err(|e| Error::denied(e.message()))
}

/// Disables the retries of `object_store`, since the transport retries.
fn no_retries() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}

/// Creates the transport of a store.
pub(super) fn transport(
    hosts: Vec<String>,
    options: &ObjectOptions,
    stats: &Arc<Stats>,
) -> Result<Arc<Transport>> {
    let headers = user_headers(&options.headers)?;
    let mut transport = Transport::new(
        hosts,
        headers,
        options.timeout,
        options.retries,
        stats.clone(),
    )?;
    transport.redirects = options.redirects.clone();
    transport.refusal_is_final = options.refusal_is_final;
    Ok(Arc::new(transport))
}

fn connector(
    bucket: &str,
    hosts: Vec<String>,
    options: &ObjectOptions,
    stats: &Arc<Stats>,
) -> Result<Connector> {
    Ok(Connector::new(transport(hosts, options, stats)?, bucket))
}

/// Returns the host of an endpoint.
fn host_of(endpoint: &str) -> Result<String> {
    let url = Url::parse(endpoint).map_err(|e| wrong_endpoint(&e.to_string()))?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(wrong_endpoint("neither http:// nor https://"));
    }
    let host = url.host_str();
    Ok(host
        .ok_or_else(|| wrong_endpoint("it has no host"))?
        .to_string())
}

fn wrong_endpoint(why: &str) -> Error {
    Error::invalid(format!(
        "the endpoint: {why}; write http://HOST:PORT or https://HOST"
    ))
}

fn unusable(error: object_store::Error) -> Error {
    Error::invalid(super::cloud::line_of(&error))
}
