//! The methods of a store that has another below it and leaves most of them to that one. It knows no kind of store.

/// Methods of a [`Store`] that asks the one in its field `$below`, by their names.
macro_rules! hand_on {
    ($below:ident: $($method:ident)*) => { $(hand_on!(@$method $below);)* };
    (@forget $below:ident) => {
        fn forget(&self, prefix: &crate::store::Key) {
            self.$below.forget(prefix)
        }
    };
    (@stat_many $below:ident) => {
        fn stat_many(
            &self,
            keys: &mut dyn Iterator<Item = crate::store::Key>,
            each: &mut dyn FnMut(crate::error::Result<Option<crate::store::Stat>>) -> bool,
        ) {
            self.$below.stat_many(keys, each)
        }
    };
    (@get $below:ident) => {
        fn get(&self, key: &crate::store::Key, limit: u64, value: &mut Vec<u8>) -> crate::error::Result<Option<crate::store::Version>> {
            self.$below.get(key, limit, value)
        }
    };
    (@get_range $below:ident) => {
        fn get_range(&self, key: &crate::store::Key, range: std::ops::Range<u64>, value: &mut Vec<u8>) -> crate::error::Result<Option<crate::store::Stat>> {
            self.$below.get_range(key, range, value)
        }
    };
    (@stat $below:ident) => {
        fn stat(&self, key: &crate::store::Key) -> crate::error::Result<Option<crate::store::Stat>> {
            self.$below.stat(key)
        }
    };
    (@list $below:ident) => {
        fn list(&self, prefix: &crate::store::Key) -> crate::error::Result<crate::store::Listing> {
            self.$below.list(prefix)
        }
    };
    (@lists_all $below:ident) => {
        fn lists_all(&self) -> bool {
            self.$below.lists_all()
        }
    };
    (@concurrency $below:ident) => {
        fn concurrency(&self) -> usize {
            self.$below.concurrency()
        }
    };
    (@file $below:ident) => {
        fn file(&self, key: &crate::store::Key) -> crate::error::Result<Option<(std::fs::File, crate::store::Stat)>> {
            self.$below.file(key)
        }
    };
    (@location $below:ident) => {
        fn location(&self) -> String {
            self.$below.location()
        }
    };
    (@space $below:ident) => {
        fn space(&self) -> crate::error::Result<Option<crate::store::Space>> {
            self.$below.space()
        }
    };
    (@is_writable $below:ident) => {
        fn is_writable(&self) -> bool {
            self.$below.is_writable()
        }
    };
    (@check_writable $below:ident) => {
        fn check_writable(&self, prefix: &crate::store::Key) -> crate::error::Result<()> {
            self.$below.check_writable(prefix)
        }
    };
    (@put $below:ident) => {
        fn put(&self, key: &crate::store::Key, value: &[u8]) -> crate::error::Result<crate::store::Version> {
            self.$below.put(key, value)
        }
    };
    (@put_if $below:ident) => {
        fn put_if(&self, key: &crate::store::Key, value: &[u8], replaces: crate::store::Replaces) -> crate::error::Result<Option<crate::store::Version>> {
            self.$below.put_if(key, value, replaces)
        }
    };
    (@delete $below:ident) => {
        fn delete(&self, key: &crate::store::Key) -> crate::error::Result<bool> {
            self.$below.delete(key)
        }
    };
    (@lock $below:ident) => {
        fn lock(&self, key: &crate::store::Key, since: std::time::Instant) -> crate::error::Result<crate::store::KeyLock> {
            self.$below.lock(key, since)
        }
    };
    (@sync $below:ident) => {
        fn sync(&self) -> crate::error::Result<()> {
            self.$below.sync()
        }
    };
    (@make_prefix $below:ident) => {
        fn make_prefix(&self, key: &crate::store::Key) -> crate::error::Result<()> {
            self.$below.make_prefix(key)
        }
    };
    (@remove_prefix $below:ident) => {
        fn remove_prefix(&self, key: &crate::store::Key) -> crate::error::Result<()> {
            self.$below.remove_prefix(key)
        }
    };
    (@rename $below:ident) => {
        fn rename(&self, from: &crate::store::Key, to: &crate::store::Key) -> crate::error::Result<()> {
            self.$below.rename(from, to)
        }
    };
    (@writable_file $below:ident) => {
        fn writable_file(&self, key: &crate::store::Key, create: bool, exclusive: bool) -> crate::error::Result<std::fs::File> {
            self.$below.writable_file(key, create, exclusive)
        }
    };
}
pub(crate) use hand_on;
