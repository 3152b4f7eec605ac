//! Installations as package managers make them, and what of them is shown.

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

struct Home {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Home {
    fn new() -> Home {
        let directory = tempfile::tempdir().unwrap();
        let path = std::fs::canonicalize(directory.path()).unwrap();
        Home { _directory: directory, path }
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    fn link(&self, name: &str, target: &str) {
        let path = self.path.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target.replace("~", self.path.to_str().unwrap()), path).unwrap();
    }

    /// `~` stands for the home.
    #[track_caller]
    fn check(&self, program: &str, folders: &[&str], command: &str, shown: &[&str], variables: &str) {
        let path = std::env::join_paths(folders.iter().map(|folder| self.path.join(folder))).ok();
        let search = SearchPath::new(path, None);
        let mut runtime = Runtime::new(&search, Some(self.path.clone()));
        let found = runtime.add_program(&search.find(program).unwrap()).unwrap();
        let mut definition = Definition::new(Vec::new());
        runtime.show(&mut definition, "/bin");
        let home = |text: &str| text.replace(self.path.to_str().unwrap(), "~");
        let mounts: Vec<_> = definition.sandbox.mounts.iter().map(|each| home(each.target.to_str().unwrap())).collect();
        let variables_found: Vec<_> = definition
            .sandbox
            .environment
            .iter()
            .map(|(name, value)| home(&format!("{}={}", name.to_string_lossy(), value.to_string_lossy())))
            .collect();
        assert_eq!(
            (home(found.to_str().unwrap()).as_str(), mounts),
            (command, shown.iter().map(|&each| each.to_owned()).collect())
        );
        assert_eq!(variables_found.join(" "), variables);
    }
}

#[test]
fn a_package_of_node_is_its_modules_and_its_node() {
    let home = Home::new();
    home.file("node/bin/node", "\x7fELF");
    home.file("node/include/node/node.h", "");
    home.file("node/lib/node_modules/agent/cli.js", "#!/usr/bin/env -S node --x\n");
    home.link("node/bin/agent", "../lib/node_modules/agent/cli.js");
    let inside = "~/node/lib/node_modules/agent/cli.js";
    home.check("agent", &["node/bin"], inside, &["~/node"], "PATH=~/node/bin:/bin");
    // npm's prefix is the caller's own, and Node is in `~/.local` beside other programs.
    home.file(".npm/lib/node_modules/agent/cli.js", "#!/usr/bin/env node\n");
    home.link(".npm/bin/agent", "../lib/node_modules/agent/cli.js");
    home.link(".local/bin/node", "~/.local/share/node/node");
    home.file(".local/include/node/node.h", "");
    home.file(".local/share/node/node", "\x7fELF");
    let shown = ["~/.local/bin/node", "~/.local/share/node/node", "~/.npm/lib/node_modules"];
    let inside = "~/.npm/lib/node_modules/agent/cli.js";
    home.check("agent", &[".npm/bin", ".local/bin"], inside, &shown, "PATH=~/.local/bin:/bin");
}

#[test]
fn a_tool_of_uv_is_its_environment_and_its_python_by_each_name() {
    let home = Home::new();
    let tool = ".local/share/uv/tools/agent";
    home.file(&format!("{tool}/pyvenv.cfg"), "");
    let long = format!("#!/bin/sh\n'''exec' \"{}/{tool}/bin/python\" \"$0\" \"$@\"\n", home.path.display());
    home.file(&format!("{tool}/bin/agent"), &long);
    home.link(".local/bin/agent", "~/.local/share/uv/tools/agent/bin/agent");
    home.link(&format!("{tool}/bin/python"), "~/.local/share/uv/python/cpython-3.12/bin/python3.12");
    home.link(".local/share/uv/python/cpython-3.12", "cpython-3.12.4");
    home.file(".local/share/uv/python/cpython-3.12.4/bin/python3.12", "\x7fELF");
    home.file(".local/share/uv/python/cpython-3.12.4/lib/python3.12/os.py", "");
    let python = "~/.local/share/uv/python/cpython-3.12";
    let shown = [python, &format!("{python}.4"), "~/.local/share/uv/tools/agent"];
    home.check("agent", &[".local/bin"], "~/.local/share/uv/tools/agent/bin/agent", &shown, "PATH=/bin");
}

#[test]
fn packages_of_pip_for_the_user_and_a_single_program_show_no_more_than_themselves() {
    let home = Home::new();
    home.file(".local/bin/agent", "#!/usr/bin/python3\n");
    home.file(".local/lib/python3.11/site-packages/agent.py", "");
    home.file(".local/share/keyrings/login", "");
    let shown = ["~/.local/bin/agent", "~/.local/lib/python3.11"];
    home.check("agent", &[".local/bin"], "~/.local/bin/agent", &shown, "PATH=/bin PYTHONUSERBASE=~/.local");
    home.link(".local/bin/other", "~/.local/share/other/versions/2.1");
    home.file(".local/share/other/versions/2.1", "\x7fELF");
    let real = "~/.local/share/other/versions/2.1";
    home.check("other", &[".local/bin"], real, &[real], "PATH=/bin");
    home.file(".pyenv/shims/agent", "#!/usr/bin/env bash\n");
    let search = SearchPath::new(Some(home.path.join(".pyenv/shims").into_os_string()), None);
    let error = Runtime::new(&search, None).add_program(&search.find("agent").unwrap()).unwrap_err();
    assert!(error.to_string().contains("it is a shim"), "{error}");
}

#[test]
fn the_interpreter_is_in_the_first_line_or_in_that_of_a_long_path() {
    let name = |name: &str| Some(Interpreter::Name(name.into()));
    let path = |path: &str| Some(Interpreter::Path(path.into()));
    for (head, expected) in [
        ("#!/usr/bin/env node\n", name("node")),
        ("#!/usr/bin/env -S A=b node --flag\n", name("node")),
        ("#! /a/python3 -I\n", path("/a/python3")),
        ("#!/bin/sh\n'''exec' /a/python \"$0\" \"$@\"\n", path("/a/python")),
        ("#!/bin/sh\n'''exec' \"/a b/python\" \"$0\"\n", path("/a b/python")),
        ("#!/bin/sh\nexec x\n", path("/bin/sh")),
        ("\x7fELF", None),
        ("", None),
    ] {
        assert_eq!(parse_interpreter(head.as_bytes()), expected, "{head:?}");
    }
}
