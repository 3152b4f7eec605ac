//! The subject of an epoll(7) event, as a token and back.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Supervisor,
    Init,
    Questions,
    Listener(u32),
    Published(u32),
    Lookup(u32),
    Client(u32),
    Server(u32),
}

impl Source {
    pub(super) fn token(self) -> u64 {
        let (kind, number) = match self {
            Source::Supervisor => (0, 0),
            Source::Init => (1, 0),
            Source::Questions => (2, 0),
            Source::Listener(number) => (3, number),
            Source::Published(number) => (4, number),
            Source::Lookup(number) => (5, number),
            Source::Client(number) => (6, number),
            Source::Server(number) => (7, number),
        };
        kind << 32 | u64::from(number)
    }

    pub(super) fn of(token: u64) -> Source {
        let number = token as u32;
        match token >> 32 {
            0 => Source::Supervisor,
            1 => Source::Init,
            2 => Source::Questions,
            3 => Source::Listener(number),
            4 => Source::Published(number),
            5 => Source::Lookup(number),
            6 => Source::Client(number),
            _ => Source::Server(number),
        }
    }
}
