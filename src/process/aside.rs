//! Work in a child process that runs beside its parent, without a wait.

use super::identity;
use crate::error::{Context, Kind, Result};
use crate::sys::clone::{Side, clone_process, exit, is_over};
use rustix::fd::{AsFd, OwnedFd};

#[derive(Debug)]
pub(crate) struct Aside(OwnedFd);

impl Aside {
    /// It ends with its parent.
    pub(crate) fn begin(work: impl FnOnce() -> Result<()>) -> Result<Aside> {
        match clone_process(0, None).failing(Kind::Internal, || "start a process beside this one")? {
            Side::Child => {
                // As in `init::run`.
                std::panic::set_hook(Box::new(|_| exit(1)));
                let done = identity::die_with_parent().and_then(|()| identity::be_undumpable()).and_then(|()| work());
                exit(i32::from(done.is_err()))
            }
            Side::Parent(_, pidfd) => Ok(Aside(pidfd)),
        }
    }

    /// `true` also reaps it.
    pub(crate) fn is_over(&self) -> bool {
        is_over(self.0.as_fd())
    }
}
