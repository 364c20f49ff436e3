//! A macro for test doubles that wrap another store and forward some methods to it, while the
//! others keep the defaults of a store without a store below.

/// Implements the named methods of [`Readable`](crate::Readable) or
/// [`Store`](crate::Store) by calling the store in the field `$inner`.
#[macro_export]
macro_rules! delegate_store {
    ($inner:ident: $($method:ident)*) => { $($crate::delegate_store!(@$method $inner);)* };
    (@fn $inner:ident.$method:ident($($arg:ident: $type:ty),*) -> $returned:ty) => {
        fn $method(&self, $($arg: $type),*) -> $returned {
            self.$inner.$method($($arg),*)
        }
    };
    (@get $inner:ident) => { $crate::delegate_store!(@fn $inner.get(
        key: &$crate::Key, limit: u64, value: &mut Vec<u8>
    ) -> ::zarrfs_base::error::Result<Option<$crate::Version>>); };
    (@get_range $inner:ident) => { $crate::delegate_store!(@fn $inner.get_range(
        key: &$crate::Key, range: std::ops::Range<u64>, value: &mut Vec<u8>
    ) -> ::zarrfs_base::error::Result<Option<$crate::Stat>>); };
    (@stat $inner:ident) => { $crate::delegate_store!(@fn $inner.stat(
        key: &$crate::Key
    ) -> ::zarrfs_base::error::Result<Option<$crate::Stat>>); };
    (@list $inner:ident) => { $crate::delegate_store!(@fn $inner.list(
        prefix: &$crate::Key
    ) -> ::zarrfs_base::error::Result<$crate::Listing>); };
    (@lists_all $inner:ident) => { $crate::delegate_store!(@fn $inner.lists_all() -> bool); };
    (@concurrency $inner:ident) => { $crate::delegate_store!(@fn $inner.concurrency() -> usize); };
    (@forget $inner:ident) => { $crate::delegate_store!(@fn $inner.forget(prefix: &$crate::Key) -> ()); };
    (@location $inner:ident) => { $crate::delegate_store!(@fn $inner.location() -> String); };
    (@space $inner:ident) => { $crate::delegate_store!(@fn $inner.space()
    -> ::zarrfs_base::error::Result<Option<$crate::Space>>); };
    (@is_writable $inner:ident) => { $crate::delegate_store!(@fn $inner.is_writable() -> bool); };
    (@check_writable $inner:ident) => { $crate::delegate_store!(@fn $inner.check_writable(
        prefix: &$crate::Key
    ) -> ::zarrfs_base::error::Result<()>); };
    (@put_if $inner:ident) => { $crate::delegate_store!(@fn $inner.put_if(
        key: &$crate::Key, value: &[u8], replaces: $crate::Replaces
    ) -> ::zarrfs_base::error::Result<Option<$crate::Version>>); };
    (@put_pieces $inner:ident) => { $crate::delegate_store!(@fn $inner.put_pieces(
        key: &$crate::Key, pieces: &[$crate::ValuePiece], replaces: $crate::Replaces
    ) -> ::zarrfs_base::error::Result<Option<$crate::Version>>); };
    (@delete $inner:ident) => { $crate::delegate_store!(@fn $inner.delete(
        key: &$crate::Key
    ) -> ::zarrfs_base::error::Result<bool>); };
    (@sync $inner:ident) => { $crate::delegate_store!(@fn $inner.sync() -> ::zarrfs_base::error::Result<()>); };
    (@make_prefix $inner:ident) => { $crate::delegate_store!(@fn $inner.make_prefix(
        key: &$crate::Key
    ) -> ::zarrfs_base::error::Result<()>); };
    (@remove_prefix $inner:ident) => { $crate::delegate_store!(@fn $inner.remove_prefix(
        key: &$crate::Key
    ) -> ::zarrfs_base::error::Result<()>); };
    (@rename $inner:ident) => { $crate::delegate_store!(@fn $inner.rename(
        from: &$crate::Key, to: &$crate::Key
    ) -> ::zarrfs_base::error::Result<()>); };
}
