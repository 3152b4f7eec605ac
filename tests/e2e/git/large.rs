//! Large files on request: the real git-lfs in couriers, with a server of the batch API behind nginx with TLS and a
//! password.

use super::https::{assert_nowhere, not_prepared};
use super::server::{Host, LFS, PASSWORD, TLS};
use super::{COMMIT, host, push};
use crate::support::{Lab, has_program};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The batch API (git-lfs, docs/api/batch.md) for downloads: files named by digest. For an object with a file `OID.at`,
/// it returns the URL in that file; it sends `OID.wrong` in place of the requested object.
const SERVER: &str = r#"
import http.server, json, os, sys
address, port, folder, place = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *words): pass
    def answer(self, status, body, kind="application/vnd.git-lfs+json"):
        self.send_response(status); self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        objects = []
        for each in asked["objects"]:
            path = os.path.join(folder, each["oid"])
            if asked["operation"] != "download" or not os.path.exists(path):
                objects.append(dict(each, error=dict(code=404, message="no such object"))); continue
            href = f"{place}/{each['oid']}"
            if os.path.exists(path + ".at"): href = open(path + ".at").read() + each["oid"]
            objects.append(dict(each, actions=dict(download=dict(href=href))))
        self.answer(200, json.dumps(dict(transfer="basic", objects=objects)).encode())
    def do_GET(self):
        path = os.path.join(folder, os.path.basename(self.path))
        if os.path.exists(path + ".wrong"): path += ".wrong"
        self.answer(200, open(path, "rb").read(), "application/octet-stream")
http.server.ThreadingHTTPServer((address, port), Handler).serve_forever()
"#;

/// A repository behind nginx and its server of large files: the host, the repository, and the folder of that server.
fn serve(lab: &Lab) -> Option<(Host, PathBuf, PathBuf)> {
    let mut far = Host::new(lab)?;
    if !has_program("git-lfs") {
        return None;
    }
    let remote = far.repository(lab, "app.git");
    let folder = lab.directory("large");
    let server = lab.file("server.py", SERVER);
    let mut command = Command::new("python3");
    command.arg(server).arg(far.world.address.to_string()).arg(LFS.to_string()).arg(&folder);
    command.arg(format!("https://a.test:{TLS}/app.git/info/lfs/objects"));
    far.world.also(&mut command, LFS);
    Some((far, remote, folder))
}

/// Commits a large file's pointer to `main` of a bare repository. Its content goes to `folder`, under its digest, which
/// is returned.
fn add(remote: &Path, folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join("new");
    fs::write(&path, content).unwrap();
    let id = host(folder, "sha256sum new | cut -d' ' -f1");
    fs::rename(&path, folder.join(&id)).unwrap();
    let size = content.len();
    host(
        remote.parent().unwrap(),
        &format!(
            "rm -rf lfs.work; git clone -q {} lfs.work; cd lfs.work; printf '*.bin filter=lfs diff=lfs merge=lfs -text\\n' >.gitattributes; \
             git config filter.lfs.clean cat; git config filter.lfs.smudge cat; git config filter.lfs.process ''; \
             printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:{id}\\nsize {size}\\n' >{name}; \
             git add .; git commit -qm 'adds {name}'; git push -q origin HEAD:main; cd ..; rm -rf lfs.work",
            remote.display()
        ),
    );
    id
}

#[test]
fn large_files_come_over_https_by_couriers_with_the_credential_for_their_host() {
    let lab = Lab::new();
    let Some((far, remote, folder)) = serve(&lab) else { return };
    let large = "large\n".repeat(200_000);
    let id = add(&remote, &folder, "a.bin", &large);
    let url = far.url("app.git");
    let run = far.known_task(&lab, &url).args(["--lfs"]).sh(
        "wc -c <a.bin; tail -n 1 a.bin; git status --short; git lfs ls-files; git cat-file -p HEAD:a.bin | tail -n 1",
    );
    run.ended_as("succeeded", 0);
    let expected = format!("1200000\nlarge\n{} * a.bin\nsize 1200000\n", &id[..10]);
    assert!(run.stderr.starts_with(&expected), "{run:#?}");
    assert!(far.served().contains(&format!("a.test 200 me GET /app.git/info/lfs/objects/{id}")), "{}", far.served());
    assert_nowhere(&lab.store(), PASSWORD);
    // Another commit: contents in the mirror are not requested again.
    add(&remote, &folder, "b.bin", "another\n");
    let run = far.known_task(&lab, &url).args(["--lfs"]).sh("wc -c <a.bin; cat b.bin");
    assert!(run.stderr.starts_with("1200000\nanother\n"), "{run:#?}");
    assert_eq!(
        far.served().matches(&format!("200 me GET /app.git/info/lfs/objects/{id}")).count(),
        1,
        "{}",
        far.served()
    );
    // Without the option, a pointer stays a pointer.
    let run = far.known_task(&lab, &url).sh("head -n 1 a.bin");
    assert!(run.stderr.starts_with("version https://git-lfs.github.com/spec/v1\n"), "{run:#?}");
}

#[test]
fn large_files_that_are_elsewhere_are_fetched_from_named_hosts_alone_and_never_with_the_credential() {
    let lab = Lab::new();
    let Some((far, remote, folder)) = serve(&lab) else { return };
    let id = add(&remote, &folder, "a.bin", "elsewhere\n");
    let at = |url: &str| fs::write(folder.join(format!("{id}.at")), url).unwrap();
    let url = far.url("app.git");
    at(&format!("https://b.test:{TLS}/info/lfs/"));
    let run = far.known_task(&lab, &url).args(["--lfs"]).sh("echo ran");
    not_prepared(&lab, &run, &["sends to `b.test`, which is not an allowed location"]);
    assert!(!far.served().contains("b.test"), "{}", far.served());
    for href in ["https://metadata.test/", &format!("https://{}:8443/", far.world.address), "https://169.254.169.254/"]
    {
        at(href);
        not_prepared(&lab, &far.known_task(&lab, &url).args(["--lfs"]).sh("echo ran"), &[]);
    }
    assert_eq!(far.world.heard(), "", "the other port of the same address");
    at(&format!("https://b.test:{TLS}/info/lfs/"));
    let named = ["--lfs", "--git-from", &format!("b.test:{TLS}")];
    let run = far.known_task(&lab, &url).args(named).sh("cat a.bin");
    run.ended_as("succeeded", 0);
    assert!(run.stderr.starts_with("elsewhere\n"), "{run:#?}");
    let served = far.served();
    assert!(served.contains("b.test 200 - GET") && !served.contains("b.test 200 me"), "{served}");
}

#[test]
fn a_repository_cannot_say_where_its_large_files_are_and_what_is_none_of_them_is_refused() {
    let lab = Lab::new();
    let Some((far, remote, folder)) = serve(&lab) else { return };
    let id = add(&remote, &folder, "a.bin", "content\n");
    host(
        lab.path(),
        &format!(
            "git clone -q {} evil; cd evil; printf '[lfs]\\n\\turl = https://b.test:{TLS}/evil\\n[lfs \"customtransfer.x\"]\\n\\tpath = touch\\n' >.lfsconfig; \
             git add .lfsconfig; git commit -qm evil; git push -q origin HEAD:main",
            remote.display()
        ),
    );
    let url = far.url("app.git");
    let named = ["--lfs", "--git-from", &format!("b.test:{TLS}")];
    let run = far.known_task(&lab, &url).args(named).sh("cat a.bin");
    assert!(run.stderr.starts_with("content\n"), "{run:#?}");
    assert!(!far.served().contains("evil"), "{}", far.served());
    // A server with a wrong content, and one without it.
    let other = add(&remote, &folder, "b.bin", "right\n");
    fs::write(folder.join(format!("{other}.wrong")), "wrong\n").unwrap();
    not_prepared(&lab, &far.known_task(&lab, &url).args(["--lfs"]).sh("echo ran"), &["fetch the repository"]);
    fs::remove_file(folder.join(&other)).unwrap();
    not_prepared(&lab, &far.known_task(&lab, &url).args(["--lfs"]).sh("echo ran"), &["fetch the repository"]);
    assert!(folder.join(id).exists());
}

#[test]
fn large_files_of_a_path_are_those_that_it_has() {
    let lab = Lab::new();
    if !has_program("git-lfs") {
        return;
    }
    let remote = super::bare(&lab);
    let folder = lab.directory("large");
    let id = add(&remote, &folder, "a.bin", "near\n");
    let task = || lab.task().args(["--lfs", "--repo", remote.to_str().unwrap()]);
    let run = task().sh("echo ran");
    run.ended_as("prepare_failed", 125);
    host(&remote, &format!("mkdir -p lfs/objects/{0}/{1}; cp ../large/{id} lfs/objects/{0}/{1}/", &id[..2], &id[2..4]));
    let run = task().sh("cat a.bin; git status --short");
    run.ended_as("succeeded", 0);
    assert_eq!(run.stderr, "near\n", "{run:#?}");
}

#[test]
fn large_files_that_the_agent_made_are_named_where_its_commits_are_pushed() {
    let lab = Lab::new();
    let Some((far, remote, folder)) = serve(&lab) else { return };
    add(&remote, &folder, "a.bin", "there already\n");
    let script = format!(
        "{COMMIT}; head -c 50000 /dev/zero >\"new one.bin\"; git add -A; git commit -qm large; rm a.bin; git commit -qam without"
    );
    let task = far.known_task(&lab, &far.url("app.git")).args(["--lfs", "--push-branch", "agent/x"]);
    let run = task.sh(&script);
    run.ended_as("succeeded", 0);
    assert_eq!(push(&run)["state"], "pushed", "{run:#?}");
    assert_eq!(
        push(&run)["left_behind"],
        serde_json::json!(["the contents of the large file new one.bin"]),
        "{run:#?}"
    );
    // They are with the task.
    let patch = lab.path().join("patch");
    let id = run.receipt()["id"].as_str().unwrap().to_owned();
    lab.brig(["task", "export", &id, "--patch", "-o", patch.to_str().unwrap()]).succeeded();
    assert!(fs::read_to_string(patch).unwrap().contains("new one.bin"));
}
