//! The loss of a network: its gateway, its program or its device has ended. The command is asked to end, since it would
//! only wait for answers.

use super::outcome::Stopped;
use super::streams::Notice;
use super::supervise::{Findings, State, Watch};
use crate::error::{Error, Kind, Result};

impl Watch<'_> {
    pub(super) fn receive_from_gateway(&mut self, state: &mut State, seen: &mut Findings) -> Result<()> {
        let (is_over, row) = self.running.hear_gateway()?;
        if let Some(row) = row {
            self.sink.notice(Notice::Egress(row))?;
        }
        if is_over {
            let error = Error::new(Kind::Egress, "the gateway of the sandbox's network has ended");
            self.lose(Stopped::Gateway, error.hint("run the task again"), state, seen)?;
        }
        Ok(())
    }

    pub(super) fn lose_link(&mut self, state: &mut State, seen: &mut Findings) -> Result<()> {
        state.has_lost_link = true;
        let error = Error::new(Kind::Network, "the program `pasta` of the sandbox's network has ended");
        self.lose(Stopped::Link, error.hint("run the task again"), state, seen)
    }

    /// Runs at intervals: the host's removal of a device sends no notice.
    pub(super) fn look_at_link(&mut self, state: &mut State, seen: &mut Findings) -> Result<()> {
        if state.has_lost_link || !self.running.has_lost_device() {
            return Ok(());
        }
        state.has_lost_link = true;
        let error = Error::new(Kind::Network, "the device of the sandbox's network was removed on the host");
        self.lose(Stopped::Link, error.hint("run the task again, and leave the devices `brig*` alone"), state, seen)
    }

    fn lose(&mut self, why: Stopped, error: Error, state: &mut State, seen: &mut Findings) -> Result<()> {
        if seen.ended.is_none() && seen.stopped.is_none() {
            seen.failure.get_or_insert(error);
            self.ask(why, state, seen)?;
        }
        Ok(())
    }
}
