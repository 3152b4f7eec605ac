//! The terminal in raw mode while a sandbox has one, and its restoration.

use brig::error::{Context, Kind, Result};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// The terminal in raw mode. Its drop restores the old mode.
pub(super) struct Raw(Termios);

impl Raw {
    /// Stops the terminal from interpreting keys: Ctrl-C is for the command inside.
    pub(super) fn enter() -> Result<Raw> {
        let step = || "prepare the terminal";
        let before = tcgetattr(rustix::stdio::stdin()).failing(Kind::Usage, step)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw).failing(Kind::Usage, step)?;
        Ok(Raw(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A closed terminal needs no restoration.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}
