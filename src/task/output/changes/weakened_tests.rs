//! Without its guard, the test of an attack fails.

use std::process::Command;

const ATTACKS: &[(&str, &str)] = &[
    ("changes-beneath", "apply_tests::a_link_in_place_of_a_directory_is_not_followed"),
    (
        "changes-beneath",
        "apply_tests::a_directory_that_is_replaced_during_the_apply_is_not_followed_and_all_is_put_back",
    ),
    ("changes-beneath", "tree::tests::nothing_but_a_regular_file_inside_is_opened"),
    ("changes-beneath", "collect_tests::a_directory_that_becomes_a_link_under_the_walk_is_not_followed"),
    (
        "changes-beneath",
        "../output::artifact::collect::tests::a_folder_that_becomes_a_link_under_the_walk_is_not_followed",
    ),
    ("pinned-paths", "../secrets::oauth::tests::a_token_is_read_and_locked_in_the_folder_that_was_checked"),
    ("changes-git", "apply_tests::git_is_left_out_unless_asked_for"),
    ("changes-links", "apply_tests::links_that_lead_out_are_left_out_also_by_force"),
    ("changes-verify", "apply_tests::what_the_user_changed_meanwhile_is_a_conflict_and_nothing_is_written"),
    ("changes-hard-links", "collect_tests::names_of_a_hard_link_are_links_in_the_store_and_where_they_are_applied"),
    ("above-owner", "ignored_tests::a_repository_of_another_owner_above_the_folder_hides_nothing"),
    ("changes-form", "collect_tests::an_agent_cannot_forge_the_marks_of_the_other_form"),
];

fn passes(test: &str, weaken: Option<&str>) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // Other readers of trees use the same functions.
    let test = test
        .strip_prefix("../")
        .map_or_else(|| format!("task::output::changes::{test}"), |other| format!("task::{other}"));
    command.args(["--exact", &test]).env_remove("BRIG_WEAKEN");
    if let Some(guard) = weaken {
        command.env("BRIG_WEAKEN", guard);
    }
    let output = command.output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("running 1 test"), "{test} is not there");
    output.status.success()
}

#[test]
fn on_a_weakened_build_every_attack_succeeds() {
    // Some of them do: to own a folder as another user, to mount an overlay.
    if !rustix::process::geteuid().is_root() {
        return crate::files::skip("the controls of attacks on changes: needs root");
    }
    for (guard, test) in ATTACKS {
        assert!(passes(test, None), "{test} fails with all guards");
        // Some attacks are races.
        assert!((0..20).any(|_| !passes(test, Some(guard))), "{test} passes without {guard}");
    }
}
