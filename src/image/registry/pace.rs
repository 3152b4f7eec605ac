//! A server that sends a byte now and then meets every timeout of a single read, and would block a pull for ever.

use crate::error::{Error, Kind, Result};
use crate::sys::weaken;
use std::io::Read;
use std::time::{Duration, Instant};

/// Bytes a second, over each stretch of waiting. A modem is faster.
const LEAST: u64 = 1024;
const STRETCH: Duration = Duration::from_secs(20);
/// Over several connections, with the pauses that a registry may ask for.
const LONG_STRETCH: Duration = Duration::from_secs(300);

/// Only waiting counts: unpacking may be slower than the network.
pub(super) struct Pace {
    pub(super) stretch: Duration,
    waited: Duration,
    received: u64,
}

impl Pace {
    /// For one connection.
    fn new() -> Pace {
        Pace { stretch: STRETCH, waited: Duration::ZERO, received: 0 }
    }

    /// For all connections of a blob.
    pub(super) fn long() -> Pace {
        Pace { stretch: LONG_STRETCH, ..Pace::new() }
    }

    pub(super) fn check(&mut self, waited: Duration, count: usize) -> Result<()> {
        self.waited += waited;
        self.received += count as u64;
        if self.waited < self.stretch {
            return Ok(());
        }
        let rate = self.received as f64 / self.waited.as_secs_f64();
        (self.waited, self.received) = (Duration::ZERO, 0);
        if count == 0 || rate >= LEAST as f64 || weaken::is_off("image-least-rate") {
            return Ok(());
        }
        let words =
            format!("the registry sends {rate:.0} bytes a second, and {LEAST} are the least that is waited for");
        Err(Error::new(Kind::Registry, words).hint("try again later, or name a mirror: --mirror HOST=MIRROR"))
    }
}

pub(super) struct PacedReader<R> {
    body: R,
    pace: Pace,
}

impl<R> PacedReader<R> {
    pub(super) fn new(body: R) -> PacedReader<R> {
        PacedReader { body, pace: Pace::new() }
    }
}

impl<R: Read> Read for PacedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let began = Instant::now();
        let count = self.body.read(buffer)?;
        self.pace.check(began.elapsed(), count).map_err(std::io::Error::other)?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Slow(Duration);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            std::thread::sleep(self.0);
            buffer[0] = b'x';
            Ok(1)
        }
    }

    fn read(body: Slow, count: u64) -> std::io::Result<u64> {
        let paced = PacedReader { body, pace: Pace { stretch: Duration::from_millis(100), ..Pace::new() } };
        std::io::copy(&mut paced.take(count), &mut std::io::sink())
    }

    #[test]
    fn body_that_comes_byte_by_byte_is_an_error_and_a_fast_one_is_not() {
        let error = read(Slow(Duration::from_millis(10)), 1000).unwrap_err();
        assert!(error.to_string().contains("bytes a second"), "{error}");
        assert_eq!(read(Slow(Duration::ZERO), 10_000).unwrap(), 10_000);
    }
}
