//! A container as a thing that is made, watched and removed.
//!
//! In: a [`spec::Container`](crate::spec::Container) and a [`Place`]. Out: a [`Running`] container, and after it nothing.
//! Each thing that is made registers its undoing before the next is made: [`Running`] and what it holds undo on drop.

mod check;
mod groups;
mod launch;
mod place;
mod possible;
mod running;

pub(crate) use check::{Checked, check, nested, privileged};
pub(crate) use groups::{groups, remove_groups};
pub(crate) use launch::launch;
pub(crate) use place::Place;
pub(crate) use possible::{Possible, possible};
pub(crate) use running::{Removal, Running};
