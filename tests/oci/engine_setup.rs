//! `brig engine`: the setup of each engine is in force, seen from inside, and `--remove` leaves the file as it was.

use crate::docker::{BRIDGED, Docker};
use crate::podman::Podman;
use crate::support::{Done, Lab, finish, skip};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const PROFILE: &str =
    "[network]\nallow = [\"a.example:443\", \"*.b.example\"]\n[limits]\ndisk = \"64M\"\ninodes = 2000\n";

/// A folder with a profile, a folder for receipts, and `bin` with an empty program for each engine that is not run.
struct Home {
    lab: Lab,
}

impl Home {
    fn new() -> Option<Home> {
        let lab = Lab::new()?;
        std::fs::write(lab.path().join("agent.toml"), PROFILE).unwrap();
        std::fs::create_dir(lab.path().join("receipts")).unwrap();
        Some(Home { lab })
    }

    /// Runs a line of shell in a mount namespace in which /etc and /usr/local are copies that belong to the test.
    fn engine(&self, line: &str) -> Done {
        let script = format!(
            "for each in /etc /usr/local; do mkdir -p up$each work$each; \
             mount -t overlay -o lowerdir=$each,upperdir=$D/up$each,workdir=$D/work$each none $each || exit 99; done; \
             mkdir -p /etc/docker /etc/containerd /etc/containers/containers.conf.d; {line}"
        );
        let mut command = Command::new("unshare");
        command.args(["-m", "/bin/sh", "-c", &script]).env("D", self.lab.path()).env("BRIG", program());
        command.env("HOME", self.lab.path()).env("XDG_CONFIG_HOME", self.lab.path().join("config"));
        finish(command.current_dir(self.lab.path()).stdin(Stdio::null()))
    }
}

/// A static brig: the image of the check has nothing else.
fn program() -> String {
    std::env::var("BRIG_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_brig").to_owned())
}

/// Whether the program is static, as the check needs.
fn is_static() -> bool {
    let out = Command::new("python3").args(["rootfs/audit.py", "--binary", &program()]).output();
    if out.is_ok_and(|out| out.status.success()) {
        return true;
    }
    skip("needs a static brig in BRIG_BIN");
    false
}

/// The states of a check by annotation.
fn states(out: &str) -> Vec<(String, bool)> {
    let all: Value = serde_json::from_str(out).unwrap_or_else(|cause| panic!("{cause}: {out}"));
    let text = |each: &Value| each["annotation"].as_str().unwrap().trim_start_matches("dev.brig.").to_owned();
    all.as_array().unwrap().iter().map(|each| (text(each), each["in_force"].as_bool().unwrap())).collect()
}

fn every(is_in_force: bool) -> Vec<(String, bool)> {
    ["seccomp", "landlock", "disk", "disk.inodes", "egress.allow", "receipt"]
        .map(|key| (key.to_owned(), is_in_force))
        .to_vec()
}

#[test]
fn daemon_json_is_merged_and_restored_to_the_byte() {
    let Some(home) = Home::new() else { return };
    if !Path::new("/usr/sbin/dockerd").exists() {
        return skip("needs docker.io");
    }
    let before = "{\n   \"debug\": true, \"runtimes\": {\"other\": {\"path\": \"/bin/true\"}}\n}";
    let done = home.engine(&format!(
        "printf '%s' '{before}' > /etc/docker/daemon.json; $BRIG engine setup docker --default --profile agent.toml --receipts receipts --dry-run | head -n 1; \
         cmp -s /etc/docker/daemon.json - <<'X' && echo same\n{before}\nX\n\
         $BRIG engine setup docker --default --profile ./agent.toml --receipts receipts > /dev/null && \
         $BRIG engine setup docker --default --profile ./agent.toml --receipts receipts 2>&1; \
         cat /etc/docker/daemon.json; $BRIG engine setup docker --remove > /dev/null; cat /etc/docker/daemon.json; ls /etc/docker/daemon*"
    ));
    assert!(done.out.contains("nothing to change"), "{}{}", done.out, done.err);
    let merged = &done.out[done.out.find("{\n").unwrap()..];
    let mut values = serde_json::Deserializer::from_str(merged).into_iter::<Value>();
    let merged = values.next().unwrap().unwrap();
    assert_eq!((&merged["debug"], &merged["default-runtime"]), (&json!(true), &json!("brig")));
    assert_eq!(merged["runtimes"]["other"]["path"], json!("/bin/true"));
    let arguments = merged["runtimes"]["brig"]["runtimeArgs"].as_array().unwrap();
    let words: Vec<_> = arguments.iter().map(|each| each.as_str().unwrap()).collect();
    for word in ["dev.brig.disk=67108864", "dev.brig.egress.allow=a.example:443,*.b.example", "dev.brig.seccomp=agent"]
    {
        assert!(words.contains(&word), "{words:?}");
    }
    assert!(done.out.ends_with(&format!("{before}/etc/docker/daemon.json\n")), "restored: {}", done.out);
}

#[test]
fn daemon_json_keeps_its_mode_and_what_others_wrote() {
    let Some(home) = Home::new() else { return };
    if !Path::new("/usr/sbin/dockerd").exists() {
        return skip("needs docker.io");
    }
    let before = json!({"default-runtime": "other", "runtimes": {"other": {"path": "/bin/true"}}});
    let done = home.engine(&format!(
        "cd /etc/docker; printf '%s' '{before}' > real.json; ln -s real.json daemon.json; chmod 600 real.json; chown 7:9 real.json; \
         $BRIG engine setup docker --default > /dev/null && stat -c '%a %u:%g' real.json daemon.json.before-brig; readlink daemon.json; \
         sed -i '1s/{{/{{ \"debug\": true,/' real.json; $BRIG engine setup docker --default > /dev/null && \
         sed -i '1s/{{/{{ \"live-restore\": true,/' real.json; $BRIG engine setup docker --remove > /dev/null && \
         stat -c '%a' real.json; cat daemon.json; rm daemon.json real.json; \
         $BRIG engine setup docker > /dev/null; rm daemon.json; $BRIG engine setup docker --remove > /dev/null; ls daemon* 2> /dev/null | wc -l"
    ));
    let (head, rest) = done.out.split_at(done.out.find("{\n").unwrap_or(done.out.len()));
    assert_eq!(head, "600 7:9\n600 7:9\nreal.json\n600\n", "{}{}", done.out, done.err);
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
    let restored = values.next().unwrap().unwrap();
    let expected =
        json!({"default-runtime": "other", "runtimes": before["runtimes"], "debug": true, "live-restore": true});
    assert_eq!(restored, expected);
    assert!(done.out.ends_with("}\n0\n"), "an absent file stays absent: {}{}", done.out, done.err);
}

#[test]
fn rootless_docker_is_compared_with_the_users_file() {
    let Some(home) = Home::new() else { return };
    if !Path::new("/usr/sbin/dockerd").exists() {
        return skip("needs docker.io");
    }
    let seen = json!({"filters": 2, "no_new_privileges": true, "landlock": 0, "disk_bytes": 0, "disk_inodes": 0,
        "resolver": "", "outside": "", "users": ""});
    let docker = home.lab.path().join("bin/docker");
    std::fs::create_dir(docker.parent().unwrap()).unwrap();
    let wanted = |daemon: &str| {
        let script = format!(
            "#!/bin/sh\ncase $1 in info) echo '{daemon}';; import) cat > /dev/null;; run) echo '{seen}';; esac\n"
        );
        std::fs::write(&docker, script).unwrap();
        std::fs::set_permissions(&docker, PermissionsExt::from_mode(0o755)).unwrap();
        let done = home.engine(
            "export PATH=$D/bin:$PATH; $BRIG engine setup docker > /dev/null; \
             $BRIG engine setup docker --user --profile ./agent.toml > /dev/null; $BRIG engine check docker --json",
        );
        let all: Value =
            serde_json::from_str(&done.out).unwrap_or_else(|cause| panic!("{cause}: {}{}", done.out, done.err));
        all[0]["wanted"].clone()
    };
    assert_eq!(wanted("[name=seccomp,profile=default name=rootless]"), json!("agent"));
    assert_eq!(wanted("[name=seccomp,profile=default]"), Value::Null);
}

#[test]
fn what_brig_cannot_write_is_refused_and_changes_nothing() {
    let Some(home) = Home::new() else { return };
    if !Path::new("/usr/sbin/dockerd").exists() || !Path::new("/usr/bin/containerd").exists() {
        return skip("needs docker.io and containerd");
    }
    let refused = |line: &str, words: &str| {
        let done = home.engine(line);
        assert!(done.status != 0 && done.err.contains(words), "{line}: {} {}", done.out, done.err);
        assert!(done.err.lines().filter(|line| line.starts_with("error")).count() <= 1, "{}", done.err);
    };
    refused("echo '{oops' > /etc/docker/daemon.json; $BRIG engine setup docker", "daemon.json");
    refused(
        "echo '{}' > /etc/docker/daemon.json; $BRIG engine setup docker --remove",
        "was not changed by `brig engine setup`",
    );
    refused(
        "rm -f /etc/docker/daemon*; mkdir 'a b'; $BRIG engine setup docker --receipts 'a b'",
        "has a character that a shell reads",
    );
    refused("$BRIG engine setup docker --receipts missing", "missing");
    refused("rm -f /etc/containerd/config.toml; $BRIG engine setup containerd", "does not exist");
    refused("echo 'root = \"/x\"' > /etc/containerd/config.toml; $BRIG engine setup containerd", "no `version`");
    refused(
        "printf '[network]\\ndeny = [\"a.example\"]\\n' > d.toml; $BRIG engine setup docker --profile ./d.toml",
        "`network.deny`",
    );
    let as_nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups /usr/local/bin/brig";
    let as_user = format!("cp $BRIG /usr/local/bin/brig; {as_nobody} engine setup");
    refused(&format!("rm -f /etc/docker/daemon*; {as_user} docker"), "add --user for your own engine");
    refused(&format!("echo 'version = 2' > /etc/containerd/config.toml; {as_user} containerd"), "run it as root");
    refused("PATH=/bin; $BRIG engine setup cri-o", "cri-o is not installed");
    refused("$BRIG engine setup lxc", "the engines are podman, docker, containerd, cri-o");
    refused("$BRIG engine check docker", "brig is not a runtime of docker");
    refused("$BRIG engine check cri-o", "CRI-O has no command");
    refused(
        &format!("cp $BRIG /usr/local/bin/brig; {as_nobody} engine check podman"),
        "brig engine setup podman --user",
    );
    refused("$BRIG engine setup docker --program brig", "is not the absolute path");
    refused(
        "printf '[secrets.A]\\nsource = \"env:A\"\\nexpose = \"file\"\\n' > s.toml; $BRIG engine setup docker --profile ./s.toml",
        "secrets",
    );
}

#[test]
fn containers_of_docker_have_the_protections_of_the_profile() {
    if !is_static() {
        return;
    }
    let Some(home) = Home::new() else { return };
    if !Path::new("/usr/sbin/dockerd").exists() {
        return skip("needs docker.io");
    }
    let setup =
        "$BRIG engine setup docker --profile ./agent.toml --receipts receipts > /dev/null; cat /etc/docker/daemon.json";
    let config = home.engine(setup).out;
    let Some(docker) = Docker::make(BRIDGED, &config) else { return };
    let socket = format!("unix://{}/sock", docker.lab.path().display());
    let done = home.engine(&format!("DOCKER_HOST={socket} $BRIG engine check docker --json"));
    assert_eq!((states(&done.out), done.status), (every(true), 0), "{}{}", done.out, done.err);
}

#[test]
fn containers_of_podman_have_the_protections_of_the_profile() {
    if !is_static() {
        return;
    }
    let (Some(home), Some(_)) = (Home::new(), Podman::new("podman")) else { return };
    let store = "printf '[storage]\\ndriver = \"vfs\"\\ngraphroot = \"%s/store\"\\nrunroot = \"%s/run\"\\n' $D $D > storage.conf; export CONTAINERS_STORAGE_CONF=$D/storage.conf; \
                 printf '[engine]\\ncgroup_manager = \"cgroupfs\"\\nevents_logger = \"none\"\\ntmp_dir = \"%s/tmp\"\\n[containers]\\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\\n' $D > /etc/containers/containers.conf.d/40-test.conf";
    let run = |setup: &str| {
        home.engine(&format!(
            "{store}; $BRIG engine setup podman --default {setup} > /dev/null; unshare -n sh -c 'ip link set lo up; $BRIG engine check podman --json'; status=$?; \
             $BRIG engine setup podman --remove > /dev/null; ls /etc/containers/containers.conf.d >&2; exit $status"
        ))
    };
    let done = run("--profile ./agent.toml --receipts receipts");
    assert_eq!((states(&done.out), done.status), (every(true), 0), "{}{}", done.out, done.err);
    assert!(done.err.ends_with("40-test.conf\n"), "removed: {}", done.err);
    let done = run("");
    assert_eq!((states(&done.out), done.status), (every(false), 0), "{}{}", done.out, done.err);
}

#[test]
fn blocks_of_containerd_and_crio_come_and_go() {
    let Some(home) = Home::new() else { return };
    if !Path::new("/usr/bin/containerd").exists() {
        return skip("needs containerd");
    }
    let done = home.engine(
        "containerd config default > /etc/containerd/config.toml; sed -i 's/SystemdCgroup = false/SystemdCgroup = true/' /etc/containerd/config.toml; cp /etc/containerd/config.toml kept; \
         $BRIG engine setup containerd --profile ./agent.toml > /dev/null && containerd config dump | grep -A 20 'runtimes.brig\\]' | grep -E 'pod_annotations|BinaryName|SystemdCgroup'; \
         cat /usr/local/libexec/brig-containerd; $BRIG engine setup containerd --remove > /dev/null; cmp kept /etc/containerd/config.toml && [ ! -e /usr/local/libexec/brig-containerd ] && echo same",
    );
    assert!(done.out.contains("BinaryName = \"/usr/local/libexec/brig-containerd\""), "{}{}", done.out, done.err);
    assert!(done.out.contains("SystemdCgroup = true"), "as runc: {}", done.out);
    assert!(done.out.contains("--annotation 'dev.brig.disk=67108864'") && done.out.ends_with("same\n"), "{}", done.out);
}
