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
    (@read $inner:ident) => { $crate::delegate_store!(@fn $inner.read(
        key: &$crate::Key, range: &$crate::ByteRange, value: &mut Vec<u8>
    ) -> ::zarrfs_base::error::Result<Option<$crate::Stat>>); };
    (@stat $inner:ident) => { $crate::delegate_store!(@fn $inner.stat(
        key: &$crate::Key
    ) -> ::zarrfs_base::error::Result<Option<$crate::Stat>>); };
    (@list $inner:ident) => { $crate::delegate_store!(@fn $inner.list(
        prefix: &$crate::Key
    ) -> ::zarrfs_base::error::Result<$crate::Listing>); };
    (@hint $inner:ident) => { $crate::delegate_store!(@fn $inner.hint(hint: $crate::Hint) -> ()); };
    (@capabilities $inner:ident) => {
        fn capabilities(&self) -> $crate::Capabilities<'_> {
            self.$inner.capabilities()
        }
    };
    (@location $inner:ident) => { $crate::delegate_store!(@fn $inner.location() -> String); };
    (@check_writable $inner:ident) => { $crate::delegate_store!(@fn $inner.check_writable(
        prefix: &$crate::Key
    ) -> ::zarrfs_base::error::Result<()>); };
    (@put_pieces $inner:ident) => { $crate::delegate_store!(@fn $inner.put_pieces(
        key: &$crate::Key, pieces: &[$crate::ValuePiece], replaces: $crate::Replaces
    ) -> ::zarrfs_base::error::Result<Option<$crate::Version>>); };
    (@change $inner:ident) => { $crate::delegate_store!(@fn $inner.change(
        change: $crate::NameChange
    ) -> ::zarrfs_base::error::Result<bool>); };
    (@sync $inner:ident) => { $crate::delegate_store!(@fn $inner.sync() -> ::zarrfs_base::error::Result<()>); };
}
