//! zarrfs as part of a system: mount(8), mounts of other programs, services, `zarrfs run`, the
//! Python module, operators, and test suites of other projects.

mod desktop;
mod file_handles;
mod inherited;
mod mounting;
mod operations;
mod places;
mod python_module;
mod running;
mod sandbox;
mod service;
mod signs_of_life;
mod suites;
#[path = "../support/mod.rs"]
mod support;
