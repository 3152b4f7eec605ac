//! A bound on the buffers of all connections: the sandbox's memory limit does not cover the gateway.

use super::connection::{Connection, Front};
use crate::sys::weaken;
use std::collections::HashMap;

/// The most buffered bytes. A connection whose peer does not read buffers up to 0.6 MiB, and there are 1,024.
const MOST: usize = 32 << 20;
/// A connection with less is not cut when the sum exceeds [`MOST`].
const LITTLE: usize = 16 << 10;

/// The buffered bytes of each connection, by its number.
#[derive(Default)]
pub(super) struct Waiting {
    sum: usize,
    of: HashMap<u32, usize>,
}

impl Waiting {
    /// Updates a connection's bytes. Returns whether it must end: the sum is too large, and the connection has more
    /// than [`LITTLE`].
    pub(super) fn is_too_much(&mut self, number: u32, connection: &Connection) -> bool {
        self.count(number, connection.memory())
    }

    fn count(&mut self, number: u32, bytes: usize) -> bool {
        self.sum = self.sum + bytes - self.of.insert(number, bytes).unwrap_or(0);
        self.sum > MOST && bytes > LITTLE && !weaken::is_off("gateway-memory")
    }

    /// Forgets a connection that has ended.
    pub(super) fn forget(&mut self, number: u32) {
        self.sum -= self.of.remove(&number).unwrap_or(0);
    }
}

impl Connection {
    /// The bytes that the connection buffers.
    fn memory(&self) -> usize {
        let in_tls = match &self.front {
            Front::Brokered(tls) => tls.memory(),
            _ => 0,
        };
        self.held.capacity() + self.up.memory() + self.down.memory() + in_tls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_with_more_than_a_little_ends_for_the_sum() {
        let mut waiting = Waiting::default();
        assert!(!waiting.count(1, MOST));
        assert!(!waiting.count(2, LITTLE));
        assert!(waiting.count(2, LITTLE + 1));
        assert!(!waiting.count(2, 0));
        waiting.forget(1);
        assert!(!waiting.count(3, MOST));
        waiting.forget(4);
        assert_eq!(waiting.sum, MOST);
    }
}
