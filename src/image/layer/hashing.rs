//! Who hashes the streams of a layer, of which each has two: the blob, and the tar inside it.
//!
//! Alone, a stream is hashed where it passes or by a thread of its own. Where the processor has no instructions for SHA-256 and several layers are
//! on their way at once, one thread hashes all their streams together, each in a lane of the vector registers (`files::lanes`): that takes less
//! than half of the processor's time (docs/decisions/0008-hashing-in-lanes.md).

use super::stream::{Chunk, QUEUE, lost};
use crate::error::Result;
use crate::files::lanes::{Lane, finish, update};
use crate::image::Digest;
use crate::image::digest::{Algorithm, Hasher};
use crate::sys::sha256::{Kernel, LANES};
use std::collections::VecDeque;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// How much of all bytes the largest layer may have. All lanes together take the time of 2.3 streams alone (AVX2), and the largest layer's tar is
/// hashed in one of them from its beginning to its end.
const LARGEST: f64 = 0.4;
/// With more processors there is one for every stream, and all would wait for the thread of the lanes.
const MOST_PROCESSORS: usize = 4;

/// Which of these layers, by their packed sizes in bytes, are hashed together. One that is larger than most of the others together is left to itself:
/// for most of its time it would be alone in the lanes.
fn alike(sizes: &[u64], processors: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(sizes[*index]));
    let mut left: u128 = sizes.iter().map(|size| u128::from(*size)).sum();
    let mut chosen = vec![processors <= MOST_PROCESSORS; sizes.len()];
    for index in order {
        if sizes[index] as f64 <= left as f64 * LARGEST {
            break;
        }
        chosen[index] = false;
        left -= u128::from(sizes[index]);
    }
    chosen
}

/// How long somebody whose queue is full waits for the others' lanes to be filled. On few processors those who fill them run one after the other.
const PATIENCE: Duration = Duration::from_millis(4);

/// How the thread goes on. A round takes the same time whatever number of lanes is in use, so it waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// Until enough of every tar is there.
    Waits,
    /// As long as there is something of every tar.
    Together,
    /// Patience is over: somebody waits for the network or the disk. All that is there.
    Late,
}

/// Where the bytes of one stream are hashed.
pub(super) enum Sink<'a, 'scope> {
    /// Where they pass.
    Here(Hasher),
    /// By a thread that has nothing else to do.
    Thread(SyncSender<Arc<Chunk>>, ScopedJoinHandle<'scope, Digest>),
    /// Together with others.
    Lane(Fed<'a>),
}

impl<'a, 'scope> Sink<'a, 'scope> {
    /// For the blob, whose digest may be of either kind.
    pub(super) fn of_blob(algorithm: Algorithm, together: Option<&'a Together>) -> Sink<'a, 'scope> {
        match (algorithm, together) {
            (Algorithm::Sha256, Some(together)) => Sink::Lane(together.begin(false)),
            _ => Sink::Here(Hasher::new(algorithm)),
        }
    }

    /// For the tar.
    pub(super) fn of_tar(threads: &'scope Scope<'scope, '_>, together: Option<&'a Together>) -> Sink<'a, 'scope> {
        if let Some(together) = together {
            return Sink::Lane(together.begin(true));
        }
        let (sender, chunks) = sync_channel::<Arc<Chunk>>(QUEUE);
        let thread = threads.spawn(move || {
            let mut hasher = Hasher::new(Algorithm::Sha256);
            chunks.iter().for_each(|chunk| hasher.update(chunk.bytes()));
            hasher.finish()
        });
        Sink::Thread(sender, thread)
    }

    /// The next bytes.
    pub(super) fn push(&mut self, chunk: &Arc<Chunk>) {
        match self {
            Sink::Here(hasher) => hasher.update(chunk.bytes()),
            // It takes all until it is told that nothing follows; should it have panicked, there is no digest.
            Sink::Thread(sender, _) => drop(sender.send(Arc::clone(chunk))),
            Sink::Lane(lane) => lane.push(Arc::clone(chunk)),
        }
    }

    /// The digest of all of them.
    pub(super) fn finish(self) -> Result<Digest> {
        let digest = match self {
            Sink::Here(hasher) => Some(hasher.finish()),
            Sink::Thread(sender, thread) => {
                drop(sender);
                thread.join().ok()
            }
            Sink::Lane(lane) => lane.finish(),
        };
        digest.ok_or_else(lost)
    }
}

/// The thread that hashes the streams of several layers at once, as its callers see it.
pub(crate) struct Together {
    kernel: Kernel,
    /// Of all layers, those that it hashes.
    chosen: Vec<bool>,
    shared: Mutex<Shared>,
    /// For the thread: a queue is full, a stream is over, or all is.
    work: Condvar,
    /// For those who feed it: there is room, or a digest.
    done: Condvar,
}

#[derive(Default)]
struct Shared {
    streams: Vec<Stream>,
    next: u64,
    is_closed: bool,
}

struct Stream {
    number: u64,
    /// Tars are several times as long as their blobs, so that they say when the lanes are full.
    is_tar: bool,
    /// None while it is being hashed.
    lane: Option<Lane>,
    waiting: VecDeque<Arc<Chunk>>,
    /// Nothing follows what waits.
    is_over: bool,
    hash: Option<[u8; 32]>,
}

impl Stream {
    fn is_ready(&self) -> bool {
        self.hash.is_none() && (self.is_over || !self.waiting.is_empty())
    }
}

/// One stream of it. Dropped, its rest is forgotten.
pub(crate) struct Fed<'a> {
    together: &'a Together,
    number: u64,
}

impl Together {
    /// For layers of these packed sizes in bytes, where this machine gains by it.
    pub(crate) fn new(sizes: &[u64]) -> Option<Together> {
        let kernel = Kernel::best()?;
        let chosen = alike(sizes, std::thread::available_parallelism().map_or(1, usize::from));
        let gains = chosen.contains(&true);
        gains.then(|| Together::with(kernel, chosen))
    }

    fn with(kernel: Kernel, chosen: Vec<bool>) -> Together {
        Together { kernel, chosen, shared: Mutex::default(), work: Condvar::new(), done: Condvar::new() }
    }

    /// Itself for a layer that it hashes.
    pub(crate) fn of(&self, layer: usize) -> Option<&Together> {
        self.chosen.get(layer).is_some_and(|chosen| *chosen).then_some(self)
    }

    /// A new stream.
    fn begin(&self, is_tar: bool) -> Fed<'_> {
        let mut shared = self.lock();
        let number = shared.next;
        shared.next += 1;
        let lane = Some(Lane::new());
        shared.streams.push(Stream { number, is_tar, lane, waiting: VecDeque::new(), is_over: false, hash: None });
        Fed { together: self, number }
    }

    /// The thread's work, until `close`.
    pub(crate) fn run(&self) {
        let mut shared = self.lock();
        let mut pace = Pace::Waits;
        let mut pressed: Option<Instant> = None;
        loop {
            pace = shared.pace(pace);
            if pace == Pace::Waits && pressed.is_some_and(|since| since.elapsed() >= PATIENCE) {
                pace = Pace::Late;
            }
            if pace == Pace::Waits {
                if shared.is_closed {
                    return;
                }
                let presses = shared.streams.iter().any(|stream| stream.waiting.len() >= QUEUE);
                pressed = presses.then(|| pressed.unwrap_or_else(Instant::now));
                let waited = self.work.wait_timeout(shared, if presses { PATIENCE } else { Duration::MAX });
                shared = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            pressed = None;
            let mut batch = shared.batch();
            drop(shared);
            self.hash(&mut batch);
            shared = self.lock();
            shared.put_back(batch);
            self.done.notify_all();
        }
    }

    fn hash(&self, batch: &mut [Turn]) {
        let mut messages = Vec::new();
        for turn in batch.iter_mut() {
            messages.push((&mut turn.lane, turn.chunk.as_ref().map_or(&[][..], |chunk| chunk.bytes())));
        }
        update(self.kernel, &mut messages);
        let (mut over, mut last): (Vec<_>, Vec<_>) =
            batch.iter_mut().filter(|turn| turn.is_last).map(|turn| (&mut turn.hash, &mut turn.lane)).unzip();
        let hashes = finish(self.kernel, &mut last);
        over.iter_mut().zip(hashes).for_each(|(place, hash)| **place = Some(hash));
    }

    /// Lets the thread end when nothing is left.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.work.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one stream has in one round of the lanes.
struct Turn {
    number: u64,
    lane: Lane,
    chunk: Option<Arc<Chunk>>,
    is_last: bool,
    hash: Option<[u8; 32]>,
}

impl Shared {
    /// Whether the lanes are to be filled first or there is enough in them.
    fn pace(&self, now: Pace) -> Pace {
        let open = || self.streams.iter().filter(|stream| stream.hash.is_none());
        if !open().any(Stream::is_ready) {
            return Pace::Waits;
        }
        let enough = |least| open().all(|stream| !stream.is_tar || stream.is_over || stream.waiting.len() >= least);
        let ends = || open().any(|stream| stream.is_over);
        match now {
            Pace::Late => Pace::Late,
            Pace::Together if enough(1) || ends() => Pace::Together,
            Pace::Waits if enough(QUEUE / 2) || ends() => Pace::Together,
            _ => Pace::Waits,
        }
    }

    /// The next round: a chunk of each stream that has one.
    fn batch(&mut self) -> Vec<Turn> {
        // The fullest first: with more streams than lanes none of them stays behind for long.
        let mut order: Vec<&mut Stream> = self.streams.iter_mut().filter(|stream| stream.is_ready()).collect();
        order.sort_by_key(|stream| std::cmp::Reverse(stream.waiting.len()));
        let mut batch = Vec::new();
        for stream in order.into_iter().take(LANES) {
            if let Some(lane) = stream.lane.take() {
                let chunk = stream.waiting.pop_front();
                let is_last = stream.is_over && stream.waiting.is_empty();
                batch.push(Turn { number: stream.number, lane, chunk, is_last, hash: None });
            }
        }
        batch
    }

    fn put_back(&mut self, batch: Vec<Turn>) {
        for turn in batch {
            // Not there any more: nobody waits for it.
            if let Some(stream) = self.find(turn.number) {
                stream.lane = Some(turn.lane);
                stream.hash = turn.hash;
            }
        }
    }

    fn find(&mut self, number: u64) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.number == number)
    }
}

impl Fed<'_> {
    /// The next bytes. Waits while too many are on their way.
    fn push(&self, chunk: Arc<Chunk>) {
        let mut shared = self.together.lock();
        while shared.find(self.number).is_some_and(|stream| stream.waiting.len() >= QUEUE) {
            shared = self.together.done.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(stream) = shared.find(self.number) {
            stream.waiting.push_back(chunk);
        }
        let is_full = shared.find(self.number).is_some_and(|stream| stream.waiting.len() == QUEUE);
        if is_full || shared.pace(Pace::Waits) != Pace::Waits {
            self.together.work.notify_one();
        }
    }

    fn finish(self) -> Option<Digest> {
        let mut shared = self.together.lock();
        shared.find(self.number)?.is_over = true;
        self.together.work.notify_one();
        loop {
            if let Some(hash) = shared.find(self.number)?.hash {
                return Some(Digest::sha256(&hash));
            }
            shared = self.together.done.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Fed<'_> {
    fn drop(&mut self) {
        let mut shared = self.together.lock();
        shared.streams.retain(|stream| stream.number != self.number);
        self.together.work.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::{Budget, Limits};
    use super::super::stream::decode;
    use super::*;
    use crate::error::{Error, Kind};

    #[test]
    fn layers_are_hashed_together_where_no_one_of_them_is_most_of_the_work() {
        let check = |sizes: &[u64], processors, expected: &str| {
            let words: String = alike(sizes, processors).iter().map(|one| if *one { '+' } else { '-' }).collect();
            assert_eq!(words, expected, "{sizes:?} on {processors}");
        };
        check(&[], 2, "");
        check(&[7], 2, "-");
        check(&[7, 7], 2, "--");
        check(&[7, 7, 7], 2, "+++");
        check(&[7, 7, 7, 7], 4, "++++");
        check(&[7, 7, 7, 7], 5, "----");
        check(&[90, 3, 4, 3], 2, "-+++");
        check(&[4, 90, 50, 3], 2, "----");
        check(&[u64::MAX, u64::MAX, 1, 1, 1], 2, "--+++");
    }

    /// Plain blobs of noise whose ends lie around those of chunks, decoded by threads that feed the same lanes. One of them gives up at once.
    #[test]
    fn streams_that_are_hashed_together_have_the_digests_that_they_have_alone() {
        for kernel in Kernel::all() {
            let chunk = 256 << 10;
            let sizes = [1, chunk - 1, chunk, chunk + 1, 5 * chunk, 9 * chunk + 77, 3, 2 * chunk, 7 * chunk + 1];
            let blobs: Vec<Vec<u8>> = sizes
                .iter()
                .enumerate()
                .map(|(seed, size)| (0..*size).map(|at| ((at * (seed + 3)) >> 3) as u8).collect())
                .collect();
            let together = Together::with(kernel, Vec::new());
            let decode = |blob: &Vec<u8>| {
                let fails = blob.len() == 5 * chunk;
                let (blob, budget) = (Box::new(&blob[..]), Budget::new(Limits::default()));
                decode(blob, Algorithm::Sha256, None, &budget, Some(&together), |_| match fails {
                    true => Err(Error::new(Kind::Image, "given up")),
                    false => Ok(()),
                })
            };
            let decode = &decode;
            std::thread::scope(|threads| {
                threads.spawn(|| together.run());
                let feeders: Vec<_> = blobs.iter().map(|blob| threads.spawn(move || decode(blob))).collect();
                for (feeder, blob) in feeders.into_iter().zip(&blobs) {
                    let (outcome, measured) = feeder.join().unwrap().unwrap();
                    assert_eq!(measured.blob, Digest::of(blob), "{kernel:?}: {} bytes", blob.len());
                    match outcome {
                        Ok(()) => assert_eq!(measured.diff_id, measured.blob, "{kernel:?}: {} bytes", blob.len()),
                        Err(error) => assert!(blob.len() == 5 * chunk && error.to_string().contains("given up")),
                    }
                }
                together.close();
            });
            assert!(together.lock().streams.is_empty());
        }
    }
}
