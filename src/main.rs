//! The program `zarrfs`.

use std::sync::atomic::{AtomicBool, Ordering};
use zarrfs::cli::Inherited;
use zarrfs_base::huge_pages::HugePages;

#[global_allocator]
static ALLOCATOR: HugePages = HugePages;

static INPUT_CLOSED: AtomicBool = AtomicBool::new(false);
static OUTPUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Checks the standard descriptors. Rust's runtime opens /dev/null for closed ones before it calls
/// `main`, so that `zarrfs cat ARRAY >&-` would seem to succeed.
extern "C" fn look_at_descriptors() {
    for (fd, closed) in [
        (libc::STDIN_FILENO, &INPUT_CLOSED),
        (libc::STDOUT_FILENO, &OUTPUT_CLOSED),
    ] {
        // SAFETY: the call takes numbers alone, and changes nothing.
        closed.store(
            unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1,
            Ordering::Relaxed,
        );
    }
}

// SAFETY: the section holds pointers to functions of this signature, which the C library calls
// before the runtime starts. The function uses nothing that the runtime sets up.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_RUNTIME: extern "C" fn() = look_at_descriptors;

fn main() -> std::process::ExitCode {
    zarrfs::cli::main(Inherited {
        input_closed: INPUT_CLOSED.load(Ordering::Relaxed),
        output_closed: OUTPUT_CLOSED.load(Ordering::Relaxed),
    })
}
