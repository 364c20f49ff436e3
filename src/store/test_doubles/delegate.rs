//! A macro for test doubles that wrap another store and forward some methods to it, while the
//! others keep the defaults of a store without a store below.

/// Implements the named methods of [`Readable`](crate::store::Readable) or
/// [`Store`](crate::store::Store) by calling the store in the field `$inner`.
macro_rules! delegate_store {
    ($inner:ident: $($method:ident)*) => { $(delegate_store!(@$method $inner);)* };
    (@fn $inner:ident.$method:ident($($arg:ident: $type:ty),*) -> $returned:ty) => {
        fn $method(&self, $($arg: $type),*) -> $returned {
            self.$inner.$method($($arg),*)
        }
    };
    (@get $inner:ident) => { delegate_store!(@fn $inner.get(
        key: &$crate::store::Key, limit: u64, value: &mut Vec<u8>
    ) -> $crate::error::Result<Option<$crate::store::Version>>); };
    (@get_range $inner:ident) => { delegate_store!(@fn $inner.get_range(
        key: &$crate::store::Key, range: std::ops::Range<u64>, value: &mut Vec<u8>
    ) -> $crate::error::Result<Option<$crate::store::Stat>>); };
    (@stat $inner:ident) => { delegate_store!(@fn $inner.stat(
        key: &$crate::store::Key
    ) -> $crate::error::Result<Option<$crate::store::Stat>>); };
    (@list $inner:ident) => { delegate_store!(@fn $inner.list(
        prefix: &$crate::store::Key
    ) -> $crate::error::Result<$crate::store::Listing>); };
    (@lists_all $inner:ident) => { delegate_store!(@fn $inner.lists_all() -> bool); };
    (@concurrency $inner:ident) => { delegate_store!(@fn $inner.concurrency() -> usize); };
    (@forget $inner:ident) => { delegate_store!(@fn $inner.forget(prefix: &$crate::store::Key) -> ()); };
    (@location $inner:ident) => { delegate_store!(@fn $inner.location() -> String); };
    (@space $inner:ident) => { delegate_store!(@fn $inner.space()
    -> $crate::error::Result<Option<$crate::store::Space>>); };
    (@is_writable $inner:ident) => { delegate_store!(@fn $inner.is_writable() -> bool); };
    (@check_writable $inner:ident) => { delegate_store!(@fn $inner.check_writable(
        prefix: &$crate::store::Key
    ) -> $crate::error::Result<()>); };
    (@put $inner:ident) => { delegate_store!(@fn $inner.put(
        key: &$crate::store::Key, value: &[u8]
    ) -> $crate::error::Result<$crate::store::Version>); };
    (@put_if $inner:ident) => { delegate_store!(@fn $inner.put_if(
        key: &$crate::store::Key, value: &[u8], replaces: $crate::store::Replaces
    ) -> $crate::error::Result<Option<$crate::store::Version>>); };
    (@put_pieces $inner:ident) => { delegate_store!(@fn $inner.put_pieces(
        key: &$crate::store::Key, pieces: &[$crate::store::ValuePiece], replaces: $crate::store::Replaces
    ) -> $crate::error::Result<Option<$crate::store::Version>>); };
    (@delete $inner:ident) => { delegate_store!(@fn $inner.delete(
        key: &$crate::store::Key
    ) -> $crate::error::Result<bool>); };
    (@sync $inner:ident) => { delegate_store!(@fn $inner.sync() -> $crate::error::Result<()>); };
    (@make_prefix $inner:ident) => { delegate_store!(@fn $inner.make_prefix(
        key: &$crate::store::Key
    ) -> $crate::error::Result<()>); };
    (@remove_prefix $inner:ident) => { delegate_store!(@fn $inner.remove_prefix(
        key: &$crate::store::Key
    ) -> $crate::error::Result<()>); };
    (@rename $inner:ident) => { delegate_store!(@fn $inner.rename(
        from: &$crate::store::Key, to: &$crate::store::Key
    ) -> $crate::error::Result<()>); };
}
pub(crate) use delegate_store;
