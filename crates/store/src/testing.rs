//! Stores for tests, each a wrapper or a variant of another store, and a writer of archives. They
//! are not compiled into the program.

pub mod archive;
mod delegate;
mod faulty;
mod in_flight;
mod simulated_remote;
mod unlisted;
mod values;

pub use archive::archive_of;
pub use faulty::{FaultyStore, Operation, PlannedFault};
pub use in_flight::{InFlight, InFlightRequest};
pub use simulated_remote::SimulatedRemote;
pub use unlisted::UnlistedStore;
pub use values::{get, key, part};
