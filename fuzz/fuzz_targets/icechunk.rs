#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code)]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // paths may be shared by as many nodes as there is memory for
    zarrfs_base::memory::set_cache_bound(0);
    checks::icechunk(data);
});
