//! One direction of a connection: splice(2) moves bytes without copying them to user space.

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

/// Bytes of a pipe, and of one call.
const NARROW: usize = 64 << 10;
/// For a connection that fills its pipe: fewer calls and fewer switches between processes.
const WIDE: usize = 512 << 10;
/// The kernel bounds a user's pipes (`/proc/sys/fs/pipe-user-pages-soft`, 64 MiB) and then makes pipes of two pages. 32
/// gateways of a user stay below it.
const MOST_WIDE: usize = 2;
const KEPT_PIPES: usize = 16;

struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// One of [`MOST_WIDE`] tokens.
    wide: Option<Rc<()>>,
}

impl Pipe {
    fn holds(&self) -> usize {
        if self.wide.is_some() { WIDE } else { NARROW }
    }
}

/// A connection has a pipe only while bytes are in it.
#[derive(Default)]
pub(super) struct Pipes {
    idle: Vec<Pipe>,
    mark: Rc<()>,
}

impl Pipes {
    fn take(&mut self) -> Result<Pipe, Errno> {
        if let Some(pipe) = self.idle.pop() {
            return Ok(pipe);
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Pipe { read, write, wide: None })
    }

    fn put_back(&mut self, pipe: Pipe) {
        if self.idle.len() < KEPT_PIPES {
            self.idle.push(pipe);
        }
    }

    fn widen(&self, pipe: &mut Pipe) {
        if pipe.wide.is_none()
            && Rc::strong_count(&self.mark) <= MOST_WIDE
            && fcntl_setpipe_size(&pipe.write, WIDE).is_ok_and(|size| size >= WIDE)
        {
            pipe.wide = Some(Rc::clone(&self.mark));
        }
    }
}

/// Bytes that may pass: by the rate, and in all.
#[derive(Debug)]
pub(super) struct Budget {
    rate: Option<u64>,
    tokens: u64,
    filled: Instant,
    left: Option<u64>,
}

impl Budget {
    pub(super) fn new(rate: Option<u64>, total: Option<u64>) -> Budget {
        Budget { rate, tokens: rate.unwrap_or(0) / 10, filled: Instant::now(), left: total }
    }

    pub(super) fn available(&mut self) -> usize {
        let by_rate = match self.rate {
            None => u64::MAX,
            Some(rate) => {
                let now = Instant::now();
                let grown = (now - self.filled).as_micros() as u64 * rate / 1_000_000;
                if grown > 0 {
                    // The bucket holds a tenth of a second's bytes.
                    self.tokens = (self.tokens + grown).min(rate / 10 + 1);
                    self.filled = now;
                }
                self.tokens
            }
        };
        usize::try_from(by_rate.min(self.left.unwrap_or(u64::MAX))).unwrap_or(usize::MAX)
    }

    pub(super) fn spend(&mut self, bytes: usize) {
        self.tokens = self.tokens.saturating_sub(bytes as u64);
        self.left = self.left.map(|left| left.saturating_sub(bytes as u64));
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.left == Some(0)
    }
}

/// A socket and its edge-triggered epoll(7) state, valid until a call returns EAGAIN.
pub(super) struct End {
    pub(super) socket: OwnedFd,
    pub(super) readable: bool,
    pub(super) writable: bool,
}

impl End {
    pub(super) fn new(socket: OwnedFd) -> End {
        End { socket, readable: false, writable: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Idle,
    More,
    /// The rate allows nothing now.
    Throttled,
}

#[derive(Default)]
pub(super) struct Flow {
    /// Bytes from memory, sent first.
    pending: Vec<u8>,
    pipe: Option<Pipe>,
    inside: usize,
    /// The source has ended.
    pub(super) ended: bool,
    /// The destination has received the end.
    pub(super) closed: bool,
    /// Bytes since the last [`Flow::take_moved`].
    moved: u64,
}

impl Flow {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    pub(super) fn waiting(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn memory(&self) -> usize {
        self.pending.capacity()
    }

    pub(super) fn take_moved(&mut self) -> u64 {
        std::mem::take(&mut self.moved)
    }

    /// Keeps what cannot be sent.
    pub(super) fn flush(&mut self, to: &mut End) -> Result<(), Errno> {
        self.flush_most(to, usize::MAX)
    }

    fn flush_most(&mut self, to: &mut End, most: usize) -> Result<(), Errno> {
        let (mut sent, end) = (0, self.pending.len().min(most));
        while to.writable && sent < end {
            match send(&to.socket, &self.pending[sent..end], SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => to.writable = false,
                Err(errno) => return Err(errno),
            }
        }
        self.pending.drain(..sent);
        if self.pending.is_empty() {
            self.pending = Vec::new(); // frees memory: a connection may be open for hours
        }
        self.moved += sent as u64;
        Ok(())
    }

    pub(super) fn flush_within(&mut self, to: &mut End, budget: &mut Budget) -> Result<Pass, Errno> {
        let waiting = self.pending.len();
        let available = budget.available();
        self.flush_most(to, available)?;
        let sent = waiting - self.pending.len();
        budget.spend(sent);
        Ok(if sent == available && sent < waiting { Pass::Throttled } else { Pass::Idle })
    }

    pub(super) fn close_when_done(&mut self, to: &End) -> Result<(), Errno> {
        if self.ended && !self.closed && self.pending.is_empty() && self.inside == 0 {
            self.closed = true;
            match shutdown(&to.socket, Shutdown::Write) {
                Ok(()) | Err(Errno::NOTCONN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Bounded, so that no connection starves the others.
    pub(super) fn splice(
        &mut self,
        from: &mut End,
        to: &mut End,
        pipes: &mut Pipes,
        budget: &mut Budget,
    ) -> Result<Pass, Errno> {
        const ROUNDS: usize = 16;
        const MOST: u64 = 2 << 20;
        let before = self.moved;
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let mut throttled = false;
        for _ in 0..ROUNDS {
            let pass = self.flush_within(to, budget)?;
            if !self.pending.is_empty() {
                return Ok(pass);
            }
            if self.inside == 0 && !self.ended && from.readable && !throttled {
                let available = budget.available();
                if available == 0 {
                    throttled = true;
                } else {
                    let mut pipe = match self.pipe.take() {
                        Some(pipe) => pipe,
                        None => pipes.take()?,
                    };
                    let most = available.min(pipe.holds());
                    match splice(&from.socket, None, &pipe.write, None, most, flags) {
                        Ok(0) => self.ended = true,
                        Ok(count) => {
                            self.inside = count;
                            budget.spend(count);
                            if count >= pipe.holds() / 2 {
                                pipes.widen(&mut pipe);
                            }
                        }
                        Err(Errno::AGAIN) => from.readable = false,
                        Err(Errno::INTR) => {}
                        Err(errno) => return Err(errno),
                    }
                    self.pipe = Some(pipe);
                }
            }
            if self.inside > 0
                && to.writable
                && let Some(pipe) = &self.pipe
            {
                match splice(&pipe.read, None, &to.socket, None, self.inside, flags) {
                    Ok(count) => {
                        self.inside -= count;
                        self.moved += count as u64;
                    }
                    Err(Errno::AGAIN) => to.writable = false,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            if self.inside == 0
                && let Some(pipe) = self.pipe.take()
            {
                pipes.put_back(pipe);
            }
            self.close_when_done(to)?;
            if throttled && self.inside == 0 {
                return Ok(Pass::Throttled);
            }
            let can_read = self.inside == 0 && !self.ended && from.readable;
            let can_write = self.inside > 0 && to.writable;
            if !can_read && !can_write {
                return Ok(Pass::Idle);
            }
            if self.moved - before >= MOST {
                break;
            }
        }
        Ok(Pass::More)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::fcntl_getpipe_size;

    #[test]
    fn few_pipes_are_wide_at_once_and_the_mark_of_one_that_is_gone_is_free_again() {
        let mut pipes = Pipes::default();
        let mut taken: Vec<_> = (0..MOST_WIDE + 2).map(|_| pipes.take().unwrap()).collect();
        taken.iter_mut().for_each(|pipe| pipes.widen(pipe));
        assert_eq!(taken.iter().filter(|pipe| pipe.holds() == WIDE).count(), MOST_WIDE);
        for pipe in &taken {
            assert!(fcntl_getpipe_size(&pipe.write).unwrap() >= pipe.holds());
        }
        drop(taken.remove(0)); // a connection that ends with bytes in its pipe
        let last = taken.last_mut().unwrap();
        pipes.widen(last);
        assert_eq!(last.holds(), WIDE);
        taken.into_iter().for_each(|pipe| pipes.put_back(pipe));
        assert_eq!(pipes.take().unwrap().holds(), WIDE); // the last returned pipe
    }
}
