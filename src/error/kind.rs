//! The closed catalogue of error kinds, from which `docs/errors.md`, `--json` and the exit status are made.

use serde::{Deserialize, Serialize};

macro_rules! catalogue {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $exit:literal, $retryable:literal, $sentence:literal;)*) => {
        /// The kind of an error. A caller branches on it, never on text.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Kind { $($(#[$doc])* #[doc = $sentence] #[serde(rename = $code)] $name,)* }

        impl Kind {
            /// Every kind, in the catalogue's order.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// The stable printed code, such as `E-USERNS`.
            pub fn code(self) -> &'static str { match self { $(Kind::$name => $code,)* } }

            /// The exit status of a command with this error.
            pub fn exit_status(self) -> u8 { match self { $(Kind::$name => $exit,)* } }

            /// Whether the same call may succeed later without a change.
            pub fn retryable(self) -> bool { match self { $(Kind::$name => $retryable,)* } }

            /// The sentence in `docs/errors.md`.
            pub fn sentence(self) -> &'static str { match self { $(Kind::$name => $sentence,)* } }
        }
    };
}

catalogue! {
    Usage = "E-USAGE", 125, false, "The command line is not one that brig understands.";
    Profile = "E-PROFILE", 125, false, "A profile has an unknown key, a value that does not parse, or contradicts itself.";
    Spec = "E-SPEC", 125, false, "A container's configuration is invalid or asks for something that brig does not have.";
    NotFound = "E-NOT-FOUND", 125, false, "The task, container, image or file that was named does not exist.";
    Exists = "E-EXISTS", 125, false, "Something of that name is there already.";
    State = "E-STATE", 125, false, "The object is in a state in which this cannot be done.";
    Workspace = "E-WORKSPACE", 125, false, "The folder or repository that was named cannot be a workspace.";
    CommandNotFound = "E-COMMAND-NOT-FOUND", 127, false, "The command does not exist inside the sandbox.";
    CommandNotExecutable = "E-COMMAND-NOT-EXECUTABLE", 126, false, "The command exists but cannot be executed: a directory, no x bit, a wrong format.";
    UserNamespace = "E-USERNS", 125, false, "A user namespace cannot be made or mapped on this machine.";
    Namespace = "E-NAMESPACE", 125, false, "A namespace cannot be made or joined.";
    Cgroup = "E-CGROUP", 125, false, "A cgroup cannot be made, written, read or removed.";
    LimitUnenforceable = "E-LIMIT", 125, false, "A limit that was asked for cannot be enforced on this machine.";
    Mount = "E-MOUNT", 125, false, "A file system cannot be mounted, or its target in the root is not safe.";
    Seccomp = "E-SECCOMP", 125, false, "The system-call filter cannot be built or installed.";
    Landlock = "E-LANDLOCK", 125, false, "Landlock rules cannot be put in force as asked.";
    Identity = "E-IDENTITY", 125, false, "User, groups, capabilities or process attributes cannot be set as asked.";
    Network = "E-NETWORK", 125, false, "The network of a sandbox cannot be set up as asked.";
    Image = "E-IMAGE", 125, false, "An image, layer or manifest is invalid, corrupt or hostile.";
    Registry = "E-REGISTRY", 125, true, "A registry cannot be reached or refuses.";
    Certificate = "E-CERTIFICATE", 125, false, "A server's certificate, or ours, is not one that can be believed.";
    Credentials = "E-CREDENTIALS", 125, false, "A registry does not know us or does not let us do this.";
    Disk = "E-DISK", 125, true, "No space or no inode is left, or the disk cap cannot be set up.";
    Store = "E-STORE", 125, false, "The store cannot be read or written.";
    Record = "E-RECORD", 125, false, "A record is torn, from another version, or cannot be written.";
    Secret = "E-SECRET", 125, false, "A secret's source cannot be read or its exposure is not possible.";
    Egress = "E-EGRESS", 125, false, "An egress rule does not parse or the gateway cannot run.";
    Backend = "E-BACKEND", 125, false, "The backend that was named cannot be used, or cannot enforce what was asked for.";
    Policy = "E-POLICY", 125, false, "A rule of the operator refused the task, or what it handed over.";
    Hook = "E-HOOK", 125, false, "A hook failed or timed out.";
    Busy = "E-BUSY", 125, true, "As much as may run at once runs already.";
    Lost = "E-LOST", 125, true, "A process of brig ended without a word.";
    Internal = "E-INTERNAL", 125, false, "A state that should not be possible; please report it.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_unique_and_has_a_sentence() {
        let mut codes: Vec<_> = Kind::ALL.iter().map(|kind| kind.code()).collect();
        codes.sort_unstable();
        let before = codes.len();
        codes.dedup();
        assert_eq!(before, codes.len());
        assert!(Kind::ALL.iter().all(|kind| kind.sentence().ends_with('.') && kind.exit_status() >= 125));
    }

    #[test]
    fn errors_page_matches_the_catalogue() {
        let page = include_str!("../../docs/errors.md");
        let mut sections = page.split("\n## ").skip(1);
        for kind in Kind::ALL {
            let retryable = if kind.retryable() { "retryable" } else { "not retryable" };
            let (code, sentence, exit) = (kind.code(), kind.sentence(), kind.exit_status());
            let start = format!("{code}\n{sentence}\n\nExit status {exit}, {retryable}. ");
            let section = sections.next().unwrap_or_default();
            assert!(section.starts_with(&start), "docs/errors.md must have\n{start}\nand has\n{section}");
        }
        assert_eq!(sections.next(), None);
    }
}
