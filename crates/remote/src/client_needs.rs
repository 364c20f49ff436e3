//! What clients of servers need besides their requests: services for credentials, and files. The
//! list follows the sources of `object_store`. This module sends nothing.

use super::connection_error::CERTIFICATES;
use super::profile::{self, Profile, variable};
use super::service::{GOOGLE_FILES, TOKEN_FILES, azure_settings, is_on, uses_emulator};
use super::store_url::{Cloud, StoreUrl};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::AzureConfigKey;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use std::path::{Path, PathBuf};

/// Variables with a proxy, as hyper-util reads them.
const PROXIES: [&str; 6] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// Variables with the emulator of Google Cloud Storage, and with the metadata service.
const GOOGLE: [&str; 4] = [
    "STORAGE_EMULATOR_HOST",
    "GCE_METADATA_HOST",
    "GCE_METADATA_ROOT",
    "GCE_METADATA_IP",
];

/// Settings of S3 with a URL.
const S3_URLS: [AmazonS3ConfigKey; 5] = [
    AmazonS3ConfigKey::S3Endpoint,
    AmazonS3ConfigKey::Endpoint,
    AmazonS3ConfigKey::StsEndpoint,
    AmazonS3ConfigKey::MetadataEndpoint,
    AmazonS3ConfigKey::ContainerCredentialsFullUri,
];

/// Settings of Azure with a URL.
const AZURE_URLS: [AzureConfigKey; 3] = [
    AzureConfigKey::MsiEndpoint,
    AzureConfigKey::AuthorityHost,
    AzureConfigKey::FabricTokenServiceUrl,
];

/// Files with the certificates of issuers, and directories, also those to which links lead.
const ISSUERS: [&str; 9] = [
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    // on NixOS a link
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/share/pki",
    "/var/lib/ca-certificates",
];

/// What a client needs.
#[derive(Debug, Default)]
pub struct ClientNeeds {
    /// Endpoints, services for credentials, and proxies. The scheme may be missing.
    pub urls: Vec<String>,
    /// Files with tokens, which are read again, and may be replaced.
    pub token_files: Vec<PathBuf>,
    /// Files and directories that are read when the client is made.
    pub files: Vec<PathBuf>,
}

impl ClientNeeds {
    /// Returns what the environment and profiles say of the client for `url`.
    pub fn new(url: &str) -> Self {
        let mut needs = ClientNeeds {
            urls: PROXIES.into_iter().filter_map(variable).collect(),
            ..ClientNeeds::default()
        };
        let named = CERTIFICATES.into_iter().filter_map(std::env::var_os);
        needs.files = named
            .flat_map(|paths| std::env::split_paths(&paths).collect::<Vec<_>>())
            .chain(ISSUERS.map(PathBuf::from))
            .collect();
        match cloud_of(url) {
            Some(Cloud::S3) => needs.add_s3(),
            Some(Cloud::Google) => needs.add_google(),
            Some(Cloud::Azure) => needs.add_azure(),
            None => {}
        }
        needs
    }

    fn add_s3(&mut self) {
        let builder = AmazonS3Builder::from_env();
        let directory = std::env::current_dir().unwrap_or_default();
        let profile = Profile::load(&directory);
        let urls = S3_URLS
            .iter()
            .filter_map(|key| builder.get_config_value(key));
        self.urls.extend(urls);
        self.urls
            .extend(profile.get("endpoint_url").map(str::to_string));
        let tokens = TOKEN_FILES
            .iter()
            .filter_map(|key| builder.get_config_value(key));
        let tokens = tokens.chain(profile.get("web_identity_token_file").map(str::to_string));
        self.token_files.extend(tokens.map(PathBuf::from));
        self.files.extend(profile::paths(&directory));
    }

    fn add_google(&mut self) {
        let builder = GoogleCloudStorageBuilder::from_env();
        let url = builder.get_config_value(&GoogleConfigKey::BaseUrl);
        self.urls
            .extend(GOOGLE.into_iter().filter_map(variable).chain(url));
        let named = GOOGLE_FILES
            .iter()
            .filter_map(|key| builder.get_config_value(key));
        self.files.extend(named.map(PathBuf::from));
        let usual = Path::new(".config/gcloud/application_default_credentials.json");
        self.files
            .extend(std::env::home_dir().map(|home| home.join(usual)));
    }

    fn add_azure(&mut self) {
        let (builder, endpoint) = azure_settings();
        let urls = AZURE_URLS
            .iter()
            .filter_map(|key| builder.get_config_value(key));
        self.urls.extend(urls.chain(endpoint));
        if uses_emulator(&builder) {
            let named = variable("AZURITE_BLOB_STORAGE_URL");
            self.urls
                .push(named.unwrap_or_else(|| "http://127.0.0.1:10000".to_string()));
        }
        let token = builder.get_config_value(&AzureConfigKey::FederatedTokenFile);
        self.token_files.extend(token.map(PathBuf::from));
    }
}

/// Returns whether the client for `url` may start the program `az`.
pub fn runs_azure_cli(url: &str) -> bool {
    if cloud_of(url) != Some(Cloud::Azure) {
        return false;
    }
    let (builder, _) = azure_settings();
    let value = |key| builder.get_config_value(&key).unwrap_or_default();
    is_on(&value(AzureConfigKey::UseAzureCli))
        || value(AzureConfigKey::CredentialType) == "azure_cli"
}

fn cloud_of(url: &str) -> Option<Cloud> {
    match StoreUrl::parse(url) {
        Ok(StoreUrl::Bucket { cloud, .. }) => Some(cloud),
        _ => None,
    }
}
