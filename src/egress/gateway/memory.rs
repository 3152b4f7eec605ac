//! A bound on what waits in all connections together: the gateway's memory is outside of the sandbox's limit.

use super::connection::{Connection, Front};
use crate::sys::weaken;
use std::collections::HashMap;

/// Bytes that may wait. A connection whose other side does not read holds up to 0.6 MiB, and there are 1,024.
const MOST: usize = 32 << 20;
/// A connection with less is not cut when more than [`MOST`] waits.
const LITTLE: usize = 16 << 10;

/// What waits in each connection, by its number.
#[derive(Default)]
pub(super) struct Waiting {
    sum: usize,
    of: HashMap<u32, usize>,
}

impl Waiting {
    /// Counts a connection anew. Whether it must end: all together have too much, and it has more than a little.
    pub(super) fn is_too_much(&mut self, number: u32, connection: &Connection) -> bool {
        self.count(number, connection.memory())
    }

    fn count(&mut self, number: u32, bytes: usize) -> bool {
        self.sum = self.sum + bytes - self.of.insert(number, bytes).unwrap_or(0);
        self.sum > MOST && bytes > LITTLE && !weaken::is_off("gateway-memory")
    }

    /// A connection has ended.
    pub(super) fn forget(&mut self, number: u32) {
        self.sum -= self.of.remove(&number).unwrap_or(0);
    }
}

impl Connection {
    /// The memory of what waits in it.
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
