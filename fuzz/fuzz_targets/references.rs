#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code)]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // a generator may make as many references as there is memory for
    zarrfs_base::memory::set_cache_bound(0);
    checks::references(data);
});
