//! What survives killed daemons, failing system calls, power cuts and stores that hang.

mod batch;
mod crashes;
mod exercisers;
mod faults;
mod hangs;
mod killed_writers;
mod limits;
mod mount_races;
mod outlive;
mod power_cuts;
mod put_crashes;
#[path = "../support/mod.rs"]
mod support;
