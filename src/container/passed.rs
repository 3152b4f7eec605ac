//! What a caller hands to the container besides its configuration: descriptors, and where its terminal goes.

use super::creation::Creation;
use crate::error::{Context, Error, Kind, Result};
use std::ffi::OsString;

/// A terminal that nobody would serve, or a socket that nothing would be sent to.
pub(super) fn check_terminal(terminal: bool, wish: &Creation) -> Result<()> {
    let refuse = |words: &str| Err(Error::new(Kind::Usage, words));
    match (terminal && wish.detached, wish.console_socket.is_some()) {
        (true, false) => refuse("cannot allocate tty if runc will detach without setting console socket"),
        (false, true) => refuse("cannot use console socket if runc will not detach or allocate tty"),
        _ => Ok(()),
    }
}

/// Every descriptor that is to be handed through must be there.
pub(super) fn check_preserved(count: u32) -> Result<()> {
    for number in 3..count.saturating_add(3) {
        std::fs::read_link(format!("/proc/self/fd/{number}"))
            .failing(Kind::Usage, || format!("unable to stat preserved-fd {number} (of {count})"))?;
    }
    Ok(())
}

/// How many sockets a service manager handed us (sd_listen_fds(3)); they come before those of `--preserve-fds`.
pub(super) fn listeners() -> u32 {
    std::env::var("LISTEN_FDS").ok().and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Tells the container of them.
pub(super) fn preserve_listeners(environment: &mut Vec<(OsString, OsString)>) {
    if listeners() > 0 {
        environment.retain(|(name, _)| name != "LISTEN_FDS" && name != "LISTEN_PID");
        environment.push(("LISTEN_FDS".into(), listeners().to_string().into()));
        environment.push(("LISTEN_PID".into(), "1".into()));
    }
}
