//! T-56, CVE-2025-47290: another process exchanges folders for symlinks while an image is unpacked into them.

use crate::support::{Scratch, brig, skipped};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// The folder in which the one layer of an image is unpacked now.
fn layer_in_work(scratch: &Scratch) -> Option<String> {
    let entries = std::fs::read_dir(scratch.path("")).ok()?.flatten();
    let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    Some(scratch.path(&format!("{}/layers/0", names.find(|name| name.starts_with(".brig-"))?)))
}

/// Unpacks while every folder in turn is a symlink to the canary for a moment. How often the exchange was made.
fn race(scratch: &Scratch, weaken: &str, layout: &str, round: u32) -> u32 {
    let trap = scratch.path(&format!("trap-{round}"));
    std::os::unix::fs::symlink(scratch.path("canary"), &trap).unwrap();
    let mut command = brig(scratch, &["unpack", &format!("oci:{layout}"), &scratch.path(&format!("bundle-{round}"))]);
    let mut child = command.env("BRIG_WEAKEN", weaken).spawn().unwrap();
    let (mut exchanged, mut turn) = (0, 0);
    let mut place = None;
    while child.try_wait().unwrap().is_none() {
        place = place.or_else(|| layer_in_work(scratch));
        let Some(layer) = &place else { continue };
        turn = (turn + 1) % 100;
        let folder = format!("{layer}/d{turn}");
        for _ in 0..2 {
            exchanged += u32::from(renameat_with(CWD, &trap, CWD, &folder, RenameFlags::EXCHANGE).is_ok());
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }
    exchanged
}

#[test]
fn folders_that_become_symlinks_while_they_are_filled_lead_nowhere() {
    let scratch = Scratch::new();
    scratch.canary();
    let layout = scratch.layout("race", "");
    let exchanged: u32 = (0..5).map(|round| race(&scratch, "", &layout, round)).sum();
    scratch.canary_is_whole().unwrap_or_else(|listed| panic!("the canary was hurt:\n{listed}"));
    assert!(exchanged >= 100, "only {exchanged} exchanges: nothing was tried");
}

#[test]
fn on_paths_of_the_host_the_exchange_leads_out() {
    if skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        return;
    }
    let scratch = Scratch::new();
    scratch.canary();
    let layout = scratch.layout("race", "");
    let hurt = (0..20).any(|round| {
        race(&scratch, "image-symlinks", &layout, round);
        scratch.canary_is_whole().is_err()
    });
    assert!(hurt, "nothing came out in 20 attempts");
}
