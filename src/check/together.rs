//! Checks several arrays of a remote store at a time, since their requests spend the time waiting.
//! Events are reported in the order of the arrays, as if one was checked after the other.

use super::{Check, Event, Finding, Summary};
use crate::array::Array;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use zarrfs_base::memory::lock;
use zarrfs_store::StoreExt;

/// Maximum number of arrays at a time.
const MOST: usize = 64;

/// Maximum number of reports of an array that wait for those of the arrays before it.
const WAITING: usize = 64;

/// What the thread that checks an array reports.
enum ArrayReport {
    Found(Finding),
    /// The number of examined chunks, and the summary of the array so far.
    Progress(u64, Summary),
    End(Summary),
}

/// An array and the channel for its reports, which one thread takes.
type ArrayTask<'a> = (&'a Arc<Array>, Mutex<Option<SyncSender<ArrayReport>>>);

impl Check<'_> {
    /// Returns the number of arrays that are checked at a time: with `deep` one, since its chunks
    /// take the memory.
    pub(super) fn arrays_together(&self) -> usize {
        if self.how.deep {
            1
        } else {
            self.hierarchy.store().concurrency().min(MOST)
        }
    }

    /// Checks arrays.
    pub(super) fn arrays(&mut self, arrays: &[Arc<Array>]) {
        let hierarchy = self.hierarchy;
        let how = self.how;
        let most = self.arrays_together().min(arrays.len());
        if most <= 1 {
            return arrays
                .iter()
                .take_while(|_| !how.is_stopped())
                .for_each(|array| self.array(array));
        }
        let mut receivers = Vec::with_capacity(arrays.len());
        let add = |array| {
            let (sender, receiver) = sync_channel(WAITING);
            receivers.push(receiver);
            (array, Mutex::new(Some(sender)))
        };
        let tasks: Vec<ArrayTask> = arrays.iter().map(add).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((array, sender)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let Some(sender) = lock(sender).take() else {
                    continue;
                };
                // the receiver stays until the sender is dropped
                let send = |report| drop(sender.send(report));
                let mut tell = |event: Event| match event {
                    Event::Found(finding) => send(ArrayReport::Found(finding)),
                    Event::Progress(_, done, summary) => send(ArrayReport::Progress(done, summary)),
                };
                let mut check = Check {
                    hierarchy,
                    how,
                    tell: &mut tell,
                    summary: Summary::default(),
                };
                if !how.is_stopped() {
                    check.array(array);
                }
                send(ArrayReport::End(check.summary));
            }
        };
        std::thread::scope(|scope| {
            let started = (0..most).take_while(|_| {
                // fewer threads only take longer
                Builder::new()
                    .name("zarrfs-check".into())
                    .spawn_scoped(scope, work)
                    .is_ok()
            });
            if started.count() == 0 {
                return arrays.iter().for_each(|array| self.array(array));
            }
            for (array, reports) in arrays.iter().zip(receivers) {
                let before = self.summary;
                for report in reports {
                    match report {
                        ArrayReport::Found(finding) => (self.tell)(Event::Found(finding)),
                        ArrayReport::Progress(done, summary) => {
                            (self.tell)(Event::Progress(array, done, before.plus(summary)));
                        }
                        ArrayReport::End(summary) => self.summary = before.plus(summary),
                    }
                }
            }
        });
    }
}

impl Summary {
    fn plus(self, other: Summary) -> Summary {
        Summary {
            groups: self.groups + other.groups,
            arrays: self.arrays + other.arrays,
            chunks: self.chunks + other.chunks,
            bytes: self.bytes + other.bytes,
            complete: self.complete,
        }
    }
}
