//! Stores for tests, each a wrapper or a variant of another store. They are not compiled into the
//! program.

mod delegate;
mod faulty;
mod simulated_remote;
mod unlisted;

pub(crate) use delegate::delegate_store;
pub use faulty::{FaultyStore, Operation, PlannedFault};
pub use simulated_remote::SimulatedRemote;
pub use unlisted::UnlistedStore;
