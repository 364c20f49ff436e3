//! The client of Azure. Its settings come from connection strings and from the environment
//! variables of Azure, its command line and adlfs.

use super::{check_readable, connector, host_of, is_on, no_retries, unusable};
use crate::ObjectOptions;
use crate::cloud::Client;
use crate::profile::variable;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use std::sync::Arc;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::stats::Stats;

/// Creates a client of an Azure container. The URL or the environment names the account.
pub(crate) fn azure(
    container: &str,
    account: Option<&str>,
    options: &ObjectOptions,
    stats: &Arc<Stats>,
) -> Result<Arc<dyn Client>> {
    let (mut builder, endpoint) = azure_settings();
    if let Some(account) = account {
        builder = builder.with_account(account);
    }
    let endpoint = options.endpoint_url.clone().or(endpoint);
    let account = builder
        .get_config_value(&AzureConfigKey::AccountName)
        .unwrap_or_default();
    if account.is_empty() && !uses_emulator(&builder) {
        return Err(Error::invalid(
            "the account is missing; set AZURE_STORAGE_ACCOUNT, or abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
        ));
    }
    if let Some(path) = builder.get_config_value(&AzureConfigKey::FederatedTokenFile) {
        check_readable("AZURE_FEDERATED_TOKEN_FILE", &path)?;
    }
    if let Some(key) = builder.get_config_value(&AzureConfigKey::AccessKey)
        && STANDARD.decode(key).is_err()
    {
        // the error of `object_store` would show one of the characters
        let why = "the key of the Azure account is not one: it is not base64";
        return Err(Error::invalid(why));
    }
    let mut hosts = vec![format!("{account}.blob.core.windows.net")];
    if let Some(endpoint) = endpoint {
        hosts = vec![host_of(&endpoint)?];
        builder = builder.with_endpoint(endpoint);
    }
    if options.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let client = builder
        .with_container_name(container)
        .with_retry(no_retries())
        .with_http_connector(connector(container, hosts, options, stats)?)
        .build();
    Ok(Arc::new(client.map_err(unusable)?))
}

/// Returns the settings of Azure in the environment, and the endpoint that they name.
pub(crate) fn azure_settings() -> (MicrosoftAzureBuilder, Option<String>) {
    let mut builder = MicrosoftAzureBuilder::from_env();
    let mut endpoint = None;
    // names that the Azure command line and adlfs use, and `object_store` does not know
    for (name, key) in [
        ("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName),
        ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey),
    ] {
        if let (None, Some(value)) = (builder.get_config_value(&key), variable(name)) {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(string) = variable("AZURE_STORAGE_CONNECTION_STRING") {
        let settings = ConnectionString::parse(&string);
        for (key, value) in settings.keys {
            builder = builder.with_config(key, value);
        }
        endpoint = settings.endpoint;
    }
    let endpoint = endpoint.or_else(|| builder.get_config_value(&AzureConfigKey::Endpoint));
    (builder, endpoint)
}

/// Returns whether requests go to an emulator of Azure on this machine.
pub(crate) fn uses_emulator(builder: &MicrosoftAzureBuilder) -> bool {
    let value = builder.get_config_value(&AzureConfigKey::UseEmulator);
    value.is_some_and(|value| is_on(&value))
}

/// An Azure connection string: `AccountName=...;AccountKey=...;BlobEndpoint=...`.
#[derive(Default)]
struct ConnectionString {
    keys: Vec<(AzureConfigKey, String)>,
    endpoint: Option<String>,
}

impl ConnectionString {
    fn parse(text: &str) -> Self {
        let names = [
            ("AccountName", AzureConfigKey::AccountName),
            ("AccountKey", AzureConfigKey::AccessKey),
            ("SharedAccessSignature", AzureConfigKey::SasKey),
        ];
        let mut keys: Vec<_> = names
            .into_iter()
            .filter_map(|(name, key)| Some((key, setting_in(text, name)?)))
            .collect();
        if setting_in(text, "UseDevelopmentStorage")
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
        {
            keys.push((AzureConfigKey::UseEmulator, "true".to_string()));
        }
        ConnectionString {
            keys,
            endpoint: setting_in(text, "BlobEndpoint").or_else(|| endpoint_of_suffix(text)),
        }
    }
}

/// Returns the first setting of this name in a connection string.
fn setting_in(text: &str, name: &str) -> Option<String> {
    text.split(';')
        .filter_map(|setting| setting.trim().split_once('='))
        .find(|(other, _)| other.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.to_string())
}

/// Returns the endpoint of the account and the domain in a connection string.
fn endpoint_of_suffix(text: &str) -> Option<String> {
    let scheme = setting_in(text, "DefaultEndpointsProtocol");
    Some(format!(
        "{}://{}.blob.{}",
        scheme.as_deref().unwrap_or("https"),
        setting_in(text, "AccountName")?,
        setting_in(text, "EndpointSuffix")?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_strings_name_account_key_and_endpoint() {
        let string = ConnectionString::parse(
            "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=k==;BlobEndpoint=http://h:1/a;",
        );
        assert_eq!(string.endpoint.as_deref(), Some("http://h:1/a"));
        let keys = [
            (AzureConfigKey::AccountName, "a"),
            (AzureConfigKey::AccessKey, "k=="),
        ];
        assert_eq!(
            string.keys,
            keys.map(|(key, value)| (key, value.to_string()))
        );
        let string = ConnectionString::parse(
            "AccountName=a;EndpointSuffix=core.chinacloudapi.cn;SharedAccessSignature=sv=1&sig=x",
        );
        assert_eq!(
            string.endpoint.as_deref(),
            Some("https://a.blob.core.chinacloudapi.cn")
        );
        assert_eq!(
            string.keys[1],
            (AzureConfigKey::SasKey, "sv=1&sig=x".to_string())
        );
    }
}
