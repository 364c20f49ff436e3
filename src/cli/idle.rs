//! `--idle-timeout`: unmounts what nobody uses. It knows of the mount whether files are open and whether requests came.

use super::Failure;
use crate::error::Error;
use crate::fs::Fs;
use crate::fuse::{Mountpoint, Unmounted};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How often is looked, at least and at most.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Unmounts as soon as no file is open and no request has come for `timeout`. What is dirty and can't be stored keeps the
/// mount, and so does whoever has it as his working directory.
pub fn unmount_after(timeout: Duration, fs: Arc<Fs>, mountpoint: Arc<Mountpoint>) -> Result<(), Failure> {
    let watch = move || {
        let pause = (timeout / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        let (mut requests, mut idle_since) = (fs.requests(), Instant::now());
        loop {
            thread::sleep(pause);
            if fs.is_open() || fs.requests() != requests {
                (requests, idle_since) = (fs.requests(), Instant::now());
            } else if idle_since.elapsed() >= timeout && !is_kept(timeout, &fs, &mountpoint) {
                return;
            }
        }
    };
    thread::Builder::new().name("idle".into()).spawn(watch).map_err(Error::from)?;
    Ok(())
}

/// Unmounts. True if the mount is still there and may be unused another time.
fn is_kept(timeout: Duration, fs: &Fs, mountpoint: &Mountpoint) -> bool {
    // what fails is on record
    if fs.flush_all().is_err() {
        return true;
    }
    let shown = mountpoint.path().display();
    match mountpoint.unmount_unused() {
        Ok(Unmounted::Gone) => {
            log::info!("{shown}: unmounted, since nobody has used it for {timeout:?}");
            false
        }
        // a working directory, or something that is mounted in it or over it
        Ok(Unmounted::InUse | Unmounted::NotOnTop) => true,
        Err(e) => {
            log::error!("--idle-timeout: {shown}: {e}");
            false
        }
    }
}
