//! The documents, the structure of the source files, and the script that runs the tests.

mod documents;
mod layers;
mod runner;
#[path = "../support/mod.rs"]
mod support;
