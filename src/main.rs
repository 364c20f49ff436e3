//! The program `zarrfs`.

fn main() -> std::process::ExitCode {
    zarrfs::cli::main()
}
