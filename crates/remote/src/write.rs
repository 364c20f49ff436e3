//! Writing to a bucket: conditional puts of whole values, removal, and renames by copies on the
//! server. Servers have no prefixes, so empty ones are kept in memory.

use super::ServedStore;
use super::cloud::{Bucket, PageKind, failed, status_of, tag_version, version_of_put};
use super::connector::WasRetried;
use super::listing_progress::ListingProgress;
use super::runtime::interrupted;
use super::store_url::Cloud;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::task::JoinSet;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_store::{EntryKind, Key, Replaces, Version, check_prefix, check_rename};

/// Maximum number of requests of one rename in flight.
const RENAME_CONCURRENCY: usize = 32;

/// Maximum number of values that the rename of a prefix moves: their names are kept in memory.
const MAX_MOVED: usize = 1 << 20;

impl Bucket {
    /// Puts a value if the current one satisfies `replaces`.
    pub async fn put(
        &self,
        key: &Key,
        value: &[u8],
        replaces: Replaces<'_>,
    ) -> Result<Option<Version>> {
        let path = self.path(key)?;
        let mode = match replaces {
            _ if self.lacks_conditions.load(Ordering::Relaxed) => PutMode::Overwrite,
            Replaces::Anything => PutMode::Overwrite,
            Replaces::Nothing => PutMode::Create,
            Replaces::Version(version) => match self.update_of(key, version).await? {
                Some(update) => PutMode::Update(update),
                None => return Ok(None),
            },
        };
        let is_conditional = mode != PutMode::Overwrite;
        let was_retried = WasRetried::default();
        let mut options = PutOptions::from(mode);
        options.extensions.insert(was_retried.clone());
        let payload = PutPayload::from(value.to_vec());
        let mut put = self.client.put_opts(&path, payload.clone(), options).await;
        if is_conditional && put.as_ref().is_err_and(|e| status_of(e) == Some(501)) {
            if !self.lacks_conditions.swap(true, Ordering::Relaxed) {
                log::warn!(
                    "the server does not support conditional puts; concurrent changes by others may be lost"
                );
            }
            let options = PutMode::Overwrite.into();
            put = self.client.put_opts(&path, payload, options).await;
        }
        match put {
            Err(e) if is_conditional && is_refused(&e) => {
                if was_retried.0.load(Ordering::Relaxed) {
                    // the first attempt may have succeeded although its answer was lost
                    self.version_if_same(key, value).await
                } else {
                    Ok(None)
                }
            }
            put => version_of_put(put).map(Some),
        }
    }

    /// Returns the version of `key` if its value equals `value`.
    async fn version_if_same(&self, key: &Key, value: &[u8]) -> Result<Option<Version>> {
        let size = value.len() as u64;
        if self
            .head(key)
            .await?
            .is_none_or(|(meta, _)| meta.size != size)
        {
            return Ok(None);
        }
        let mut stored = Vec::new();
        let found = self.get(key, size, &mut stored).await?;
        Ok(found.filter(|_| stored == value).map(|stat| stat.version))
    }

    /// Returns the condition that the value still has `version`, or `None` if it does not. Google
    /// takes generations instead of entity tags as conditions, so the generation is looked up.
    async fn update_of(&self, key: &Key, version: &Version) -> Result<Option<UpdateVersion>> {
        let Version::Tag(tag) = version else {
            return Ok(None);
        };
        let mut update = UpdateVersion {
            e_tag: Some(tag.clone()),
            version: None,
        };
        if self.cloud == Cloud::Google {
            let Some((meta, _)) = self.head(key).await? else {
                return Ok(None);
            };
            if meta.e_tag.as_deref().map(tag_version).as_ref() != Some(version) {
                return Ok(None);
            }
            update.version = meta.version;
        }
        Ok(Some(update))
    }

    /// Removes a value; returns `false` if there was none.
    pub async fn delete(&self, key: &Key) -> Result<bool> {
        if self.head(key).await?.is_none() {
            return Ok(false);
        }
        let is_there = self
            .found(self.client.delete(&self.path(key)?).await)?
            .is_some();
        // removing its last value does not remove a prefix
        self.record_prefix(&key.parent());
        Ok(is_there)
    }

    /// Records that a prefix exists although it is empty.
    fn record_prefix(&self, prefix: &Key) {
        if !prefix.is_root() {
            lock(&self.created).insert(prefix.clone());
        }
    }

    /// Creates an empty prefix.
    pub async fn make_prefix(&self, key: &Key) -> Result<()> {
        if self.stat(key).await?.is_some() {
            return Err(Error::system(libc::EEXIST));
        }
        check_prefix(self.kind(&key.parent()).await?)?;
        self.record_prefix(key);
        Ok(())
    }

    /// Removes an empty prefix.
    pub async fn remove_prefix(&self, key: &Key) -> Result<()> {
        check_prefix(self.kind(key).await?)?;
        self.check_empty(key).await?;
        lock(&self.created).remove(key);
        self.record_prefix(&key.parent());
        Ok(())
    }

    /// Returns an error if anything exists below `prefix`, including a directory marker:
    /// `object_store` cannot name markers, so it cannot remove them.
    async fn check_empty(&self, prefix: &Key) -> Result<()> {
        let is_created = lock(&self.created)
            .iter()
            .any(|key| key != prefix && key.relative_to(prefix).is_some());
        let page = self.page(prefix, None, PageKind::OneLevel(Some(2))).await?;
        let has_below = page.is_empty && page.next.is_some() && self.has_below(prefix).await?;
        if !is_created && page.is_empty && !has_below {
            return Ok(());
        }
        let own = self.path(prefix)?;
        let is_marker =
            page.prefixes.is_empty() && page.objects.iter().all(|meta| meta.location == own);
        if is_marker && !is_created && !has_below {
            Err(Error::system(libc::EPERM)
                .context("another program has created a directory marker there"))
        } else {
            Err(Error::system(libc::ENOTEMPTY))
        }
    }

    async fn kind(&self, key: &Key) -> Result<Option<EntryKind>> {
        Ok(self.stat(key).await?.map(|stat| stat.kind))
    }

    /// Renames `from` to `to`. Everything is copied before anything is removed.
    pub async fn rename(self: &Arc<Self>, from: &Key, to: &Key) -> Result<()> {
        check_prefix(self.kind(&to.parent()).await?)?;
        let source = self.kind(from).await?;
        let target = self.kind(to).await?;
        let source = check_rename(from, to, source, target)?;
        if from == to {
            return Ok(());
        }
        if source == EntryKind::Prefix {
            if target.is_some() {
                self.check_empty(to).await?;
            }
            return self.rename_prefix(from, to).await;
        }
        let from_path = self.path(from)?;
        let to_path = self.path(to)?;
        let copied = self.client.copy(&from_path, &to_path).await;
        copied.map_err(failed)?;
        self.client.delete(&from_path).await.map_err(failed)?;
        self.record_prefix(&from.parent());
        Ok(())
    }

    async fn rename_prefix(self: &Arc<Self>, from: &Key, to: &Key) -> Result<()> {
        let from_path = self.path(from)?;
        let to_path = self.path(to)?;
        let mut moves = Vec::new();
        for path in self.all_below(from).await? {
            if let Some(rest) = path.as_ref().strip_prefix(from_path.as_ref()) {
                let target = Path::parse(format!("{to_path}{rest}"))
                    .map_err(|e| Error::invalid(e.to_string()))?;
                moves.push((path, target));
            }
        }
        let copies = moves.iter().cloned().map(RenameStep::Copy);
        if let Err(e) = self.run_steps(copies).await {
            // nothing existed at the target, so all values there are copies
            let copied = moves.into_iter().map(|(_, copy)| copy);
            if let Err(e) = self.run_steps(copied.map(RenameStep::Delete)).await {
                log::warn!("{to}: copies remain from a failed rename: {e}");
            }
            return Err(e);
        }
        let moved = moves.into_iter().map(|(path, _)| path);
        self.run_steps(moved.map(RenameStep::Delete)).await?;
        let mut created = lock(&self.created);
        let moved = created
            .iter()
            .map(|key| key.moved(from, to).unwrap_or_else(|| key.clone()))
            .collect();
        *created = moved;
        drop(created);
        self.record_prefix(to);
        self.record_prefix(&from.parent());
        Ok(())
    }

    /// Returns the paths of all values below `prefix`, or E2BIG if there are too many to move.
    async fn all_below(&self, prefix: &Key) -> Result<Vec<Path>> {
        let mut found = Vec::new();
        let mut token = None;
        let mut progress = ListingProgress::default();
        loop {
            let page = self.page(prefix, token, PageKind::AllLevels(None)).await?;
            progress.after(page.next.as_deref(), !page.objects.is_empty(), self.timeout)?;
            if found.len() + page.objects.len() > MAX_MOVED {
                let why = format!("{prefix}: more than {MAX_MOVED} values; too many to rename");
                return Err(Error::system(libc::E2BIG).context(why));
            }
            found.extend(page.objects.into_iter().map(|meta| meta.location));
            token = page.next;
            if token.is_none() {
                return Ok(found);
            }
        }
    }

    /// Executes all steps, several at a time. After a failure no further step is started.
    async fn run_steps(
        self: &Arc<Self>,
        mut steps: impl Iterator<Item = RenameStep>,
    ) -> Result<()> {
        let mut in_flight = JoinSet::new();
        let mut outcome = Ok(());
        loop {
            while in_flight.len() < RENAME_CONCURRENCY
                && outcome.is_ok()
                && let Some(step) = steps.next()
            {
                let bucket = self.clone();
                in_flight.spawn(async move { bucket.run_step(step).await });
            }
            match in_flight.join_next().await {
                None => return outcome,
                Some(done) => outcome = outcome.and(done.unwrap_or_else(|e| Err(interrupted(e)))),
            }
        }
    }

    async fn run_step(&self, step: RenameStep) -> Result<()> {
        let done = match step {
            RenameStep::Copy((from, to)) => self.client.copy(&from, &to).await,
            RenameStep::Delete(path) => self.client.delete(&path).await,
        };
        match done {
            // another process has removed it, or it is the marker of a directory
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            done => done.map_err(failed),
        }
    }
}

/// One step of a rename.
enum RenameStep {
    Copy((Path, Path)),
    Delete(Path),
}

/// Returns whether the server refused a put because of its condition.
fn is_refused(error: &object_store::Error) -> bool {
    use object_store::Error::{AlreadyExists, NotModified, Precondition};
    matches!(
        error,
        AlreadyExists { .. } | Precondition { .. } | NotModified { .. }
    ) || matches!(status_of(error), Some(409 | 412))
}
