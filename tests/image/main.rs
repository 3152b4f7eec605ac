//! Tests of images: unpacked, stored, pulled and pushed, with real registries and beside other tools. make.py makes the
//! images, list.py lists what they become.
//!
//! Hostile images are in `attacks`, and `controls` shows on the weakened build that each guard matters.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails, also within its helpers"
)]

mod attacks;
mod chunked;
mod controls;
mod engines;
mod names;
mod push;
mod race;
mod records;
mod registry;
mod servers;
mod store;
mod subordinate;
mod support;
mod trees;
mod trust;
