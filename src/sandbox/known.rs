//! Programs with a built-in sandbox, and the option that switches it off.

pub(super) struct Known {
    pub program: &'static str,
    /// File names. For one over the kernel's 15 bytes, also the cut name.
    names: &'static [&'static str],
    pub hint: &'static str,
    /// Whether other programs use it for their sandboxes.
    pub is_helper: bool,
}

/// The advice for a program outside of the table.
pub(super) const ANY: &str = "brig is the sandbox; if the program has another one, switch that off";

const fn program(program: &'static str, names: &'static [&'static str], hint: &'static str) -> Known {
    Known { program, names, hint, is_helper: false }
}

const TABLE: &[Known] = &[
    program(
        "codex",
        &["codex", "codex-linux-sandbox", "codex-linux-san"],
        "brig is the sandbox; run it with `--dangerously-bypass-approvals-and-sandbox` or `--sandbox danger-full-access`",
    ),
    program(
        "chromium",
        &[
            "chromium",
            "chromium-browser",
            "chromium-browse",
            "chrome",
            "google-chrome",
            "chrome-headless-shell",
            "chrome-headless",
            "headless_shell",
            "msedge",
            "brave",
        ],
        "brig is the sandbox; run it with `--no-sandbox` (Playwright: `chromiumSandbox: false`)",
    ),
    program("electron", &["electron", "code"], "brig is the sandbox; run it with `--no-sandbox`"),
    program(
        "firefox",
        &["firefox", "firefox-esr", "firefox-bin"],
        "brig is the sandbox; it works without, and with MOZ_ASSUME_USER_NS=0 it does not ask",
    ),
    program(
        "claude",
        &["claude"],
        "brig is the sandbox; switch its own off in its settings: `{\"sandbox\": {\"enabled\": false}}`",
    ),
    program("srt", &["srt"], "brig is the sandbox; run the command without srt"),
    program(
        "nix",
        &["nix", "nix-build", "nix-daemon", "nix-shell", "nix-store"],
        "brig is the sandbox; run it with `--option sandbox false`",
    ),
    program("bazel", &["bazel", "linux-sandbox"], "brig is the sandbox; run it with `--spawn_strategy=local`"),
    program(
        "podman",
        &["podman", "buildah", "rootlesskit"],
        "containers cannot run inside; make the image outside and run the task in it with `--image`",
    ),
    Known {
        program: "bwrap",
        names: &["bwrap"],
        hint: "brig is the sandbox; switch off the sandbox of the program that runs bwrap",
        is_helper: true,
    },
];

pub(super) fn find(names: &[String]) -> Option<&'static Known> {
    TABLE.iter().find(|known| names.iter().any(|name| known.names.contains(&name.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_in_one_row_and_has_the_kernels_short_form() {
        let all: Vec<_> = TABLE.iter().flat_map(|known| known.names).collect();
        for name in &all {
            assert_eq!(all.iter().filter(|other| other == &name).count(), 1, "{name}");
            let short = name.get(..15).unwrap_or(name); // TASK_COMM_LEN of linux/sched.h
            assert!(all.iter().any(|other| **other == short), "{name}: {short}");
        }
    }

    #[test]
    fn a_program_is_found_by_any_of_its_names() {
        let program = |names: &[&str]| {
            find(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).map(|known| known.program)
        };
        assert_eq!(program(&["x", "codex-linux-san"]), Some("codex"));
        assert_eq!(program(&["headless_shell"]), Some("chromium"));
        assert_eq!(program(&["unshare"]), None);
        assert_eq!(program(&[]), None);
    }
}
