//! How a bucket is changed: values put whole, under a condition where one is named; removed; renamed by copies that the
//! server makes. Prefixes are no things of a server: they are kept in mind.

use super::cloud::{Bucket, Cloud, failed, failure_of, tag_version};
use super::connector::Repeated;
use super::failure::Failure;
use super::listing::interrupted;
use super::progress::Progress;
use crate::error::{Error, Kind, Result};
use crate::store::{EntryKind, Key, Replaces, Version};
use crate::util::memory::lock;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::task::JoinSet;

/// Requests of one rename that are under way at once.
const AT_ONCE: usize = 32;

/// Maximum number of values that the rename of a prefix moves: their names are kept in memory.
const MAX_MOVED: usize = 1 << 20;

impl Bucket {
    /// Makes `value` the value of `key` if what is there is what `replaces` says.
    pub async fn put(&self, key: &Key, value: &[u8], replaces: Replaces<'_>) -> Result<Option<Version>> {
        let path = self.path(key)?;
        let mode = match replaces {
            _ if self.knows_no_conditions.load(Ordering::Relaxed) => PutMode::Overwrite,
            Replaces::Anything => PutMode::Overwrite,
            Replaces::Nothing => PutMode::Create,
            Replaces::Version(version) => match self.update_of(key, version).await? {
                Some(update) => PutMode::Update(update),
                None => return Ok(None),
            },
        };
        let is_conditional = mode != PutMode::Overwrite;
        let repeated = Repeated::default();
        let mut options = PutOptions::from(mode);
        options.extensions.insert(repeated.clone());
        let mut put = self.client.put_opts(&path, value.to_vec().into(), options).await;
        if is_conditional && put.as_ref().is_err_and(|e| failure_of(e).and_then(Failure::status) == Some(501)) {
            if !self.knows_no_conditions.swap(true, Ordering::Relaxed) {
                log::warn!("the server knows no conditional puts: what others write at the same time may be lost");
            }
            put = self.client.put_opts(&path, value.to_vec().into(), PutMode::Overwrite.into()).await;
        }
        match put {
            Ok(put) => {
                let tag =
                    put.e_tag.ok_or_else(|| Error::new(Kind::System(libc::EIO), "the server names no version"))?;
                Ok(Some(tag_version(&tag)))
            }
            Err(e) if is_conditional && is_refused(&e) => match repeated.0.load(Ordering::Relaxed) {
                // the first time may have put it, and the answer was lost
                true => self.version_if_same(key, value).await,
                false => Ok(None),
            },
            Err(e) => Err(failed(&e)),
        }
    }

    /// The version of `key` if `value` is what it has.
    async fn version_if_same(&self, key: &Key, value: &[u8]) -> Result<Option<Version>> {
        let size = value.len() as u64;
        if self.head(key).await?.is_none_or(|(meta, _)| meta.size != size) {
            return Ok(None);
        }
        let found = self.get(key, size).await?;
        Ok(found.filter(|(bytes, _)| bytes == value).map(|(_, version)| version))
    }

    /// What the server must still have; None if it hasn't. Google knows no entity tags where it is written: the
    /// generation that has the tag stands for it.
    async fn update_of(&self, key: &Key, version: &Version) -> Result<Option<UpdateVersion>> {
        let Version::Tag(tag) = version else { return Ok(None) };
        let mut update = UpdateVersion { e_tag: Some(tag.clone()), version: None };
        if self.cloud == Cloud::Google {
            let Some((meta, _)) = self.head(key).await? else { return Ok(None) };
            if meta.e_tag.as_deref().map(tag_version).as_ref() != Some(version) {
                return Ok(None);
            }
            update.version = meta.version;
        }
        Ok(Some(update))
    }

    /// Removes a value; false if there was none.
    pub async fn delete(&self, key: &Key) -> Result<bool> {
        if self.head(key).await?.is_none() {
            return Ok(false);
        }
        let is_there = self.known(self.client.delete(&self.path(key)?).await)?.is_some();
        // the level it stood on goes only when it is removed
        self.keep(&key.parent());
        Ok(is_there)
    }

    /// Keeps an empty prefix in mind.
    fn keep(&self, prefix: &Key) {
        if !prefix.is_root() {
            lock(&self.made).insert(prefix.clone());
        }
    }

    /// Makes an empty prefix.
    pub async fn make_prefix(&self, key: &Key) -> Result<()> {
        if self.stat(key).await?.is_some() {
            return Err(Error::system(libc::EEXIST));
        }
        self.check_parent(key).await?;
        self.keep(key);
        Ok(())
    }

    /// Removes an empty prefix.
    pub async fn remove_prefix(&self, key: &Key) -> Result<()> {
        match self.stat(key).await?.map(|stat| stat.kind) {
            None => return Err(Error::not_found("no such prefix")),
            Some(EntryKind::Prefix) => {}
            Some(_) => return Err(Error::system(libc::ENOTDIR)),
        }
        self.check_empty(key).await?;
        lock(&self.made).remove(key);
        self.keep(&key.parent());
        Ok(())
    }

    /// An error if there is anything below `prefix`, or if there is a marker that says it is a directory: the crate can't
    /// name one, so that it can't be removed either.
    async fn check_empty(&self, prefix: &Key) -> Result<()> {
        let is_made = lock(&self.made).iter().any(|key| key != prefix && key.relative_to(prefix).is_some());
        let page = self.page(prefix, None, Some(2), true).await?;
        let has_below = page.is_empty && page.next.is_some() && self.has_below(prefix).await?;
        if !is_made && page.is_empty && !has_below {
            return Ok(());
        }
        let own = self.path(prefix)?;
        let is_marker = page.prefixes.is_empty() && page.objects.iter().all(|meta| meta.location == own);
        match is_marker && !is_made && !has_below {
            true => Err(Error::system(libc::EPERM).context("another program has put a marker of a directory there")),
            false => Err(Error::system(libc::ENOTEMPTY)),
        }
    }

    /// An error unless the level above `key` is there.
    async fn check_parent(&self, key: &Key) -> Result<()> {
        match self.stat(&key.parent()).await?.map(|stat| stat.kind) {
            Some(EntryKind::Prefix) => Ok(()),
            Some(_) => Err(Error::system(libc::ENOTDIR)),
            None => Err(Error::not_found("no such prefix")),
        }
    }

    /// Gives what stands at `from` the name `to`. All copies are there before anything is removed.
    pub async fn rename(self: &Arc<Self>, from: &Key, to: &Key) -> Result<()> {
        self.check_parent(to).await?;
        let kind = self.stat(from).await?.map(|stat| stat.kind);
        let kind = kind.ok_or_else(|| Error::not_found("no such key"))?;
        if from == to {
            return Ok(());
        }
        let target = self.stat(to).await?.map(|stat| stat.kind);
        match (kind, target) {
            (EntryKind::Prefix, _) if to.relative_to(from).is_some() => return Err(Error::system(libc::EINVAL)),
            (EntryKind::Prefix, Some(EntryKind::Prefix)) => self.check_empty(to).await?,
            (EntryKind::Prefix, Some(_)) => return Err(Error::system(libc::ENOTDIR)),
            (_, Some(EntryKind::Prefix)) => return Err(Error::system(libc::EISDIR)),
            _ => {}
        }
        if kind == EntryKind::Prefix {
            return self.rename_prefix(from, to).await;
        }
        let (from_path, to_path) = (self.path(from)?, self.path(to)?);
        self.client.copy(&from_path, &to_path).await.map_err(|e| failed(&e))?;
        self.client.delete(&from_path).await.map_err(|e| failed(&e))?;
        self.keep(&from.parent());
        Ok(())
    }

    async fn rename_prefix(self: &Arc<Self>, from: &Key, to: &Key) -> Result<()> {
        let (from_path, to_path) = (self.path(from)?, self.path(to)?);
        let mut moves = Vec::new();
        for path in self.all_below(from).await? {
            if let Some(rest) = path.as_ref().strip_prefix(from_path.as_ref()) {
                let target = Path::parse(format!("{to_path}{rest}")).map_err(|e| Error::invalid(e.to_string()))?;
                moves.push((path, target));
            }
        }
        let copies = moves.iter().cloned().map(Change::Copy);
        if let Err(e) = self.change_all(copies.collect()).await {
            // there was nothing before: what was copied is not needed
            let copied = moves.into_iter().map(|(_, target)| Change::Delete(target));
            if let Err(e) = self.change_all(copied.collect()).await {
                log::warn!("{to}: copies that are left of a rename that failed: {e}");
            }
            return Err(e);
        }
        self.change_all(moves.into_iter().map(|(path, _)| Change::Delete(path)).collect()).await?;
        let mut made = lock(&self.made);
        let moved = made.iter().map(|key| key.moved(from, to).unwrap_or_else(|| key.clone())).collect();
        *made = moved;
        drop(made);
        self.keep(to);
        self.keep(&from.parent());
        Ok(())
    }

    /// Every value below `prefix`; E2BIG if there are too many to move.
    async fn all_below(&self, prefix: &Key) -> Result<Vec<Path>> {
        let (mut found, mut token, mut progress) = (Vec::new(), None, Progress::default());
        loop {
            let page = self.page(prefix, token, None, false).await?;
            progress.after(page.next.as_deref(), !page.objects.is_empty(), self.timeout)?;
            if found.len() + page.objects.len() > MAX_MOVED {
                let why = format!("{prefix}: more than {MAX_MOVED} values, too many to move");
                return Err(Error::system(libc::E2BIG).context(why));
            }
            found.extend(page.objects.into_iter().map(|meta| meta.location));
            token = page.next;
            if token.is_none() {
                return Ok(found);
            }
        }
    }

    /// Does all changes, many at a time; after the first that fails no further one is begun.
    async fn change_all(self: &Arc<Self>, changes: Vec<Change>) -> Result<()> {
        let mut under_way = JoinSet::new();
        let mut changes = changes.into_iter();
        let mut outcome = Ok(());
        loop {
            while under_way.len() < AT_ONCE && outcome.is_ok() {
                let Some(change) = changes.next() else { break };
                let bucket = self.clone();
                under_way.spawn(async move { bucket.change(change).await });
            }
            match under_way.join_next().await {
                None => return outcome,
                Some(done) => outcome = outcome.and(done.unwrap_or_else(|e| Err(interrupted(&e)))),
            }
        }
    }

    async fn change(&self, change: Change) -> Result<()> {
        let done = match change {
            Change::Copy((from, to)) => self.client.copy(&from, &to).await,
            Change::Delete(path) => self.client.delete(&path).await,
        };
        match done {
            // somebody has removed it meanwhile, or it is the marker of a directory
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(failed(&e)),
            Ok(()) => Ok(()),
        }
    }
}

/// One step of a rename.
enum Change {
    Copy((Path, Path)),
    Delete(Path),
}

/// True if the server says that what is there is not what was to be replaced.
fn is_refused(error: &object_store::Error) -> bool {
    use object_store::Error::{AlreadyExists, NotModified, Precondition};
    let status = failure_of(error).and_then(Failure::status);
    matches!(error, AlreadyExists { .. } | Precondition { .. } | NotModified { .. })
        || matches!(status, Some(409 | 412))
}
