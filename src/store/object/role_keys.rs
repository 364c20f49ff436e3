//! The keys of a role of the machine, of the container, or of the holder of a token. `object_store`
//! requests them.

use super::connector::{Connector, element, http_error, url_of};
use super::credentials::checked;
use super::key_renewal::KeyOrigin;
use super::renewed_keys::{KeySource, NewKeys};
use crate::error::{Error, Result};
use crate::util::memory::lock;
use async_trait::async_trait;
use chrono::DateTime;
use object_store::ClientOptions;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// A source of keys: a role.
pub(super) struct RoleKeys {
    /// The settings that name the role. Each reading builds a new client, which has not cached any
    /// keys.
    builder: AmazonS3Builder,
    connector: Connector,
}

impl RoleKeys {
    /// Creates a source, and checks the settings.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](crate::error::Kind::Invalid) if the settings are wrong.
    pub fn new(builder: AmazonS3Builder, connector: Connector) -> Result<Self> {
        let keys = RoleKeys { builder, connector };
        keys.client().map(|_| keys)
    }

    fn client(&self) -> Result<(AmazonS3, StatedEnd)> {
        let stated = StatedEnd {
            connector: self.connector.clone(),
            end: Arc::default(),
        };
        let client = self
            .builder
            .clone()
            .with_http_connector(stated.clone())
            .build();
        Ok((
            client.map_err(|e| Error::invalid(super::cloud::line_of(&e)))?,
            stated,
        ))
    }
}

#[async_trait]
impl KeySource for RoleKeys {
    async fn read(&self) -> Result<NewKeys> {
        let (client, stated) = self.client()?;
        let credential = client
            .credentials()
            .get_credential()
            .await
            .map_err(|e| failed(&e))?;
        checked(&credential)?;
        let expires = *lock(&stated.end);
        if expires.is_some_and(|end| end <= SystemTime::now()) {
            return Err(Error::denied(
                "the keys of the role have expired already; check the clock of this machine",
            ));
        }
        Ok(NewKeys {
            credential,
            expires,
            origin: KeyOrigin::Program,
        })
    }
}

/// A connector that sends requests for keys and records their time of expiry, which `object_store`
/// does not reveal.
#[derive(Clone)]
struct StatedEnd {
    connector: Connector,
    /// Protects the time alone.
    end: Arc<Mutex<Option<SystemTime>>>,
}

impl std::fmt::Debug for StatedEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StatedEnd")
    }
}

impl HttpConnector for StatedEnd {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for StatedEnd {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let url = url_of(&request)?;
        let mut body = Vec::new();
        let answer = self
            .connector
            .exchange(&url, &request, None, &mut body)
            .await
            .map_err(http_error)?;
        if let Some(end) = end_in(&body) {
            *lock(&self.end) = Some(end);
        }
        self.connector
            .response(&url, &request, answer, body)
            .map_err(http_error)
    }
}

/// Returns the `Expiration` of an answer in JSON or XML.
fn end_in(body: &[u8]) -> Option<SystemTime> {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let text = match &parsed {
        Some(parsed) => parsed.get("Expiration")?.as_str()?.to_string(),
        None => element(body, "Expiration")?,
    };
    DateTime::parse_from_rfc3339(text.trim())
        .ok()
        .map(SystemTime::from)
}

fn failed(error: &object_store::Error) -> Error {
    match super::cloud::request_error_of(error) {
        Some(failure) => failure.clone().into_error(),
        None => Error::denied(super::cloud::line_of(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn services_state_the_end_of_keys_in_json_or_xml() {
        let end = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_251_199));
        assert_eq!(
            end_in(br#"{"AccessKeyId": "A", "Expiration": "2024-02-29T23:59:59Z"}"#),
            end
        );
        assert_eq!(
            end_in(
                b"<R><Credentials><Expiration>2024-02-29T23:59:59Z</Expiration></Credentials></R>"
            ),
            end
        );
        for body in [
            &b"role-name"[..],
            b"{}",
            b"<Expiration>soon</Expiration>",
            br#"{"Expiration": 5}"#,
            b"\xff",
        ] {
            assert_eq!(end_in(body), None);
        }
    }
}
