//! The verbs of the command line, their messages and exit codes.

mod command_line;
mod creating;
mod metadata;
mod migrating;
mod packing;
mod put;
mod verbs;
mod verbs_v3;
#[path = "../support/mod.rs"]
mod support;
