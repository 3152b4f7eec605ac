//! From a compressed blob to the bytes of its tar, as a pipeline: one thread reads, hashes and inflates; one hashes what
//! comes out (the DiffID); the caller parses and writes. Chunks are shared and recycled, so a layer of any size takes the
//! same few MiB.
//!
//! What is compressed how is told by the content, not by the media type, which is often wrong.

use super::limits::Limits;
use crate::error::{Error, Kind, Result};
use crate::image::digest::{Algorithm, Hasher};
use crate::image::{Digest, tar::unreadable};
use std::io::{self, BufRead, BufReader, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

/// Large enough that a write of a big file is few system calls, small enough to stay in the second-level cache.
const CHUNK: usize = 256 << 10;
/// Chunks on their way to one consumer: what smooths out a slow file.
const QUEUE: usize = 6;
/// What zstd may ask for as its window: the most that its own tools make without a special option.
const ZSTD_WINDOW_LOG: u32 = 27;

/// What a blob turned out to be.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// The digest of the blob as it came.
    pub(crate) blob: Digest,
    pub(crate) blob_size: u64,
    /// The digest of the tar inside.
    pub(crate) diff_id: Digest,
    pub(crate) size: u64,
}

/// Runs the pipeline. `consume` sees the tar's bytes; what it leaves is read to the end, since the DiffID covers it.
pub(crate) fn decode<'a, T>(
    blob: Box<dyn Read + Send + 'a>,
    algorithm: Algorithm,
    expected_size: Option<u64>,
    limits: &Limits,
    consume: impl FnOnce(&mut Stream) -> Result<T>,
) -> Result<(Result<T>, Measured)> {
    let pool = Arc::new(Pool::default());
    let (to_reader, from_decoder) = sync_channel(QUEUE);
    let (to_hasher, hasher_input) = sync_channel::<Arc<Chunk>>(QUEUE);
    std::thread::scope(|threads| {
        let decoder = threads.spawn(|| {
            let seen = Arc::new(AtomicU64::new(0));
            let tap = Tap { blob, hasher: Hasher::new(algorithm), seen, limit: expected_size };
            inflate(tap, limits, &pool, to_reader, to_hasher)
        });
        let hasher = threads.spawn(move || {
            let mut hasher = Hasher::new(Algorithm::Sha256);
            hasher_input.iter().for_each(|chunk| hasher.update(&chunk.bytes));
            hasher.finish()
        });
        let mut stream = Stream { chunks: from_decoder, current: None, position: 0 };
        let outcome = consume(&mut stream).and_then(|value| stream.drain().map(|()| value));
        drop(stream);
        let lost = || Error::new(Kind::Internal, "a thread of the unpacker panicked");
        let diff_id = hasher.join().map_err(|_| lost())?;
        let (blob, blob_size, size) = decoder.join().map_err(|_| lost())??;
        Ok((outcome, Measured { blob, blob_size, diff_id, size }))
    })
}

/// Reads a blob, hashes what passes, and refuses more than was announced.
struct Tap<'a> {
    blob: Box<dyn Read + Send + 'a>,
    hasher: Hasher,
    /// Bytes so far; the decoder above, which borrows the tap, is watched through it.
    seen: Arc<AtomicU64>,
    limit: Option<u64>,
}

impl Read for Tap<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.blob.read(buffer)?;
        let seen = self.seen.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        if self.limit.is_some_and(|limit| seen > limit) {
            return Err(io::Error::other(Error::new(Kind::Image, "the blob is longer than its descriptor says")));
        }
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

/// The decoding thread. An error goes to the consumer in place of a chunk; then the rest of the blob is only hashed, so
/// that a corrupt blob is called corrupt and not whatever its damaged bytes looked like.
fn inflate(
    tap: Tap<'_>,
    limits: &Limits,
    pool: &Arc<Pool>,
    to_reader: SyncSender<Result<Arc<Chunk>>>,
    to_hasher: SyncSender<Arc<Chunk>>,
) -> Result<(Digest, u64, u64)> {
    let mut source = BufReader::with_capacity(CHUNK, tap);
    let mut size = 0;
    let result = pump(&mut source, limits, pool, &to_reader, &to_hasher, &mut size);
    drop(to_hasher);
    if let Err(error) = result {
        // Nobody listens any more if it was the consumer who failed.
        let _ = to_reader.send(Err(error));
    }
    drop(to_reader);
    let mut tap = source.into_inner();
    io::copy(&mut tap, &mut io::sink()).map_err(unreadable)?;
    let seen = tap.seen.load(Ordering::Relaxed);
    Ok((tap.hasher.finish(), seen, size))
}

fn pump(
    source: &mut BufReader<Tap<'_>>,
    limits: &Limits,
    pool: &Arc<Pool>,
    to_reader: &SyncSender<Result<Arc<Chunk>>>,
    to_hasher: &SyncSender<Arc<Chunk>>,
    size: &mut u64,
) -> Result<()> {
    let seen = Arc::clone(&source.get_ref().seen);
    let head = source.fill_buf().map_err(unreadable)?;
    let mut decoder: Box<dyn Read + '_> = match Compression::of(head)? {
        Compression::None => Box::new(&mut *source),
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(&mut *source)),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(&mut *source).map_err(unreadable)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(unreadable)?;
            Box::new(decoder)
        }
    };
    loop {
        let mut bytes = pool.take();
        let mut filled = 0;
        while filled < CHUNK {
            match decoder.read(&mut bytes[filled..]).map_err(corrupt)? {
                0 => break,
                count => filled += count,
            }
        }
        if filled == 0 {
            return Ok(());
        }
        *size += filled as u64;
        limits.check_size(*size)?;
        limits.check_ratio(seen.load(Ordering::Relaxed), *size)?;
        bytes.truncate(filled);
        let chunk = Arc::new(Chunk { bytes, pool: Arc::clone(pool) });
        if to_hasher.send(Arc::clone(&chunk)).is_err() || to_reader.send(Ok(chunk)).is_err() {
            return Ok(());
        }
    }
}

fn corrupt(cause: io::Error) -> Error {
    unreadable(cause).doing("decompress it")
}

/// How a blob is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    /// A plain tar.
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// Told by the first bytes.
    pub(crate) fn of(head: &[u8]) -> Result<Compression> {
        match head {
            [0x1f, 0x8b, ..] => Ok(Compression::Gzip),
            // A frame, or a skippable one in front of it (zstd:chunked).
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Compression::Zstd),
            [b'B', b'Z', b'h', ..] => Err(Error::new(Kind::Image, "bzip2 layers are not supported")),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => Err(Error::new(Kind::Image, "xz layers are not supported")),
            _ => Ok(Compression::None),
        }
    }
}

/// A piece of the tar that two readers share; its memory goes back to the pool with the last of them.
struct Chunk {
    bytes: Vec<u8>,
    pool: Arc<Pool>,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.bytes));
    }
}

/// Fresh memory costs a page fault for every 4 KiB, more than inflating into it: chunks go round.
#[derive(Default)]
struct Pool(Mutex<Vec<Vec<u8>>>);

impl Pool {
    fn take(&self) -> Vec<u8> {
        let free = self.0.lock().ok().and_then(|mut free| free.pop());
        let mut bytes = free.unwrap_or_default();
        bytes.resize(CHUNK, 0);
        bytes
    }

    fn give_back(&self, bytes: Vec<u8>) {
        if let Ok(mut free) = self.0.lock() {
            free.push(bytes);
        }
    }
}

/// The consumer's end: the tar's bytes as a buffered reader.
pub(crate) struct Stream {
    chunks: Receiver<Result<Arc<Chunk>>>,
    current: Option<Arc<Chunk>>,
    position: usize,
}

impl Stream {
    fn drain(&mut self) -> Result<()> {
        self.current = None;
        self.chunks.iter().try_for_each(|chunk| chunk.map(drop))
    }
}

impl BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.as_ref().is_none_or(|chunk| self.position == chunk.bytes.len()) {
            self.position = 0;
            self.current = match self.chunks.recv() {
                Ok(chunk) => Some(chunk.map_err(io::Error::other)?),
                Err(_) => None,
            };
        }
        Ok(self.current.as_ref().map_or(&[], |chunk| &chunk.bytes[self.position..]))
    }

    fn consume(&mut self, count: usize) {
        self.position += count;
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let count = available.len().min(buffer.len());
        buffer[..count].copy_from_slice(&available[..count]);
        self.consume(count);
        Ok(count)
    }
}
