//! The keys of a role of the machine, of the container, or of the holder of a token. `object_store`
//! requests them.

use super::cloud::{line_of, request_error_of};
use super::connector::Connector;
use super::credentials::checked;
use super::renewed_keys::{KeyOrigin, KeySource, NewKeys};
use async_trait::async_trait;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;

/// A source of keys: a role.
pub(super) struct RoleKeys {
    /// The settings that name the role.
    builder: AmazonS3Builder,
    connector: Connector,
}

impl RoleKeys {
    /// Creates a source, and checks the settings.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) if the settings are wrong.
    pub fn new(builder: AmazonS3Builder, connector: Connector) -> Result<Self> {
        let keys = RoleKeys { builder, connector };
        keys.client(Arc::default()).map(|_| keys)
    }

    /// Returns a new client, which has not cached any keys, and notes in `expiry` when they expire.
    fn client(&self, expiry: Arc<Mutex<Option<SystemTime>>>) -> Result<AmazonS3> {
        let connector = self.connector.clone().noting_expiry(expiry);
        let client = self.builder.clone().with_http_connector(connector).build();
        client.map_err(|e| Error::invalid(line_of(&e)))
    }
}

#[async_trait]
impl KeySource for RoleKeys {
    async fn read(&self) -> Result<NewKeys> {
        let expiry = Arc::default();
        let client = self.client(Arc::clone(&expiry))?;
        let credential = client.credentials().get_credential().await;
        let credential = credential.map_err(|e| match request_error_of(&e) {
            Some(failure) => failure.clone().into_error(),
            None => Error::denied(line_of(&e)),
        })?;
        checked(&credential)?;
        let expires = *lock(&expiry);
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
