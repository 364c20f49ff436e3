//! Stands for `system_calls.rs` on architectures whose system calls have other names, such as
//! 32-bit ARM. There is no filter.

use zarrfs_base::error::Result;

pub fn is_supported() -> bool {
    false
}

pub fn restrict(_connects: bool) -> Result<()> {
    Ok(())
}

pub fn permitted_calls(_connects: bool) -> Result<Vec<i64>> {
    Ok(Vec::new())
}
