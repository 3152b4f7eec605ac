//! Pull and push against a real registry (docker-registry): plain, with a password, with a token server, and on bad
//! days.

use crate::servers::{self, Server, auth_file, faulty, ready, registry};
use crate::support::{self, Scratch, assert_same, brig, kill_somewhere, kills, left_over, list, skipped};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A registry that holds an image, and a scratch whose store does not.
fn with_image(case: &str) -> (Scratch, Server) {
    let scratch = Scratch::new();
    let server = registry(&scratch, "");
    let layout = scratch.layout(case, "7");
    let first = Scratch::new();
    first.image(&["load", &layout, "--name", &server.reference()]).good();
    first.image(&["push", &server.reference()]).good();
    (scratch, server)
}

#[test]
fn what_is_pushed_is_pulled_and_a_second_pull_is_one_request() {
    if !ready() {
        return;
    }
    let (scratch, server) = with_image("layered");
    let proxy = faulty(&server, &[]);
    let first = scratch.image(&["pull", &proxy.reference()]).good();
    let before = proxy.requests().len();
    let second = scratch.image(&["pull", &proxy.reference()]).good();
    assert_eq!(first.out, second.out);
    assert!(second.err.contains("is up to date"), "{}", second.err);
    let requests = proxy.requests();
    assert_eq!(requests.len(), before + 1, "{requests:#?}");
    assert!(requests[before].starts_with("HEAD"), "{requests:#?}");
    scratch.image(&["unpack", &proxy.reference(), &scratch.path("pulled")]).good();
    let layout = scratch.path("layout-layered-1");
    scratch.image(&["unpack", &format!("oci:{layout}"), &scratch.path("direct")]).good();
    assert_same(
        &list(&scratch.path("pulled/rootfs"), &[]),
        &list(&scratch.path("direct/rootfs"), &[]),
        "pulled and direct",
    );
}

#[test]
fn a_password_is_needed_and_used() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new();
    let server = registry(&scratch, &servers::password(&scratch));
    let layout = scratch.layout("layered", "gzip");
    scratch.image(&["load", &layout, "--name", &server.reference()]).good();
    scratch.image(&["push", &server.reference(), "--auth-file", "/dev/null/none"]).refused("");
    let nobody = scratch.path("nobody.json");
    std::fs::write(&nobody, "{}").unwrap();
    scratch.image(&["push", &server.reference(), "--auth-file", &nobody]).refused("log in first");
    let wrong = auth_file(&scratch, &server, "guess");
    let refused = scratch.image(&["push", &server.reference(), "--auth-file", &wrong]).refused("401 Unauthorized");
    assert!(refused.err.contains("check the name and password") && !refused.err.contains("guess"), "{}", refused.err);
    let right = auth_file(&scratch, &server, "secret");
    scratch.image(&["push", &server.reference(), "--auth-file", &right]).good();
    scratch.image(&["rm", &server.reference()]).good();
    scratch.image(&["pull", &server.reference(), "--auth-file", &right]).good();
}

#[test]
fn a_token_is_fetched_where_the_registry_points_and_sent_to_no_other_host() {
    if !ready() {
        return;
    }
    let (scratch, server) = with_image("layered");
    let proxy = faulty(&server, &["token", "redirect"]);
    let auth = auth_file(&scratch, &proxy, "secret");
    scratch.image(&["pull", &proxy.reference(), "--auth-file", &auth]).good();
    let requests = proxy.requests();
    assert!(requests.iter().any(|line| line.contains("/token Basic")), "{requests:#?}");
    // T-53: the other host gets the request and nothing to identify us with.
    let elsewhere: Vec<_> = requests.iter().filter(|line| line.contains(" localhost ")).collect();
    assert!(!elsewhere.is_empty() && elsewhere.iter().all(|line| line.contains(" - ")), "{requests:#?}");
    let proxy = faulty(&server, &["token"]);
    let wrong = auth_file(&scratch, &proxy, "guess");
    scratch.image(&["pull", &proxy.reference(), "--auth-file", &wrong]).refused("wrong name or password");
    if skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        return;
    }
    let proxy = faulty(&server, &["token", "redirect"]);
    let auth = auth_file(&scratch, &proxy, "secret");
    let other = Scratch::new();
    other.weakened("image-redirect", &["pull", &proxy.reference(), "--auth-file", &auth]).good();
    assert!(
        proxy.requests().iter().any(|line| line.contains(" localhost ") && line.contains(" Bearer ")),
        "no guard needed"
    );
}

#[test]
fn another_host_cannot_ask_for_a_token() {
    if !ready() {
        return;
    }
    let (scratch, server) = with_image("layered");
    let proxy = faulty(&server, &["redirect", "asks"]);
    let auth = auth_file(&scratch, &proxy, "secret");
    let pull = ["pull", &proxy.reference(), "--auth-file", &auth];
    Scratch::new().image(&pull).refused("401 Unauthorized");
    let asked = || proxy.requests().iter().any(|line| line.contains("/token Basic"));
    assert!(!asked(), "{:#?}", proxy.requests());
    if skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        return;
    }
    Scratch::new().weakened("image-redirect", &pull);
    assert!(asked(), "no guard needed");
}

/// Numbers that no clock can hold.
#[test]
fn an_endless_token_and_an_endless_pause_do_no_harm() {
    if !ready() {
        return;
    }
    let (_scratch, server) = with_image("layered");
    let proxy = faulty(&server, &["token", "lasts=18446744073709551615"]);
    let scratch = Scratch::new();
    let auth = auth_file(&scratch, &proxy, "secret");
    scratch.image(&["pull", &proxy.reference(), "--auth-file", &auth]).good();
    let never = faulty(&server, &["later=18446744073709551615"]);
    Scratch::new().image(&["pull", &never.reference()]).refused("429 Too Many Requests");
}

/// T-60.
#[test]
fn a_token_server_elsewhere_is_not_asked() {
    if !ready() {
        return;
    }
    let (scratch, server) = with_image("layered");
    let trap = faulty(&server, &["token"]);
    let proxy = faulty(&server, &[&format!("realm=http://127.0.0.1:{}/token", trap.port)]);
    let auth = auth_file(&scratch, &proxy, "secret");
    scratch.image(&["pull", &proxy.reference(), "--auth-file", &auth]).refused("which is another host");
    assert!(trap.requests().is_empty());
    let allowed = format!("127.0.0.1:{}", trap.port);
    // Allowed by name: the trap is asked now (its tokens mean nothing to the registry).
    scratch.image(&["pull", &proxy.reference(), "--auth-file", &auth, "--allow-realm", &allowed]);
    assert!(trap.requests().iter().any(|line| line.contains("/token")));
    if skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        return;
    }
    let before = trap.requests().len();
    scratch.weakened("image-realm", &["pull", &proxy.reference(), "--auth-file", &auth]);
    let shown = trap.requests().split_off(before);
    assert!(shown.iter().any(|line| line.contains("/token Basic")), "no guard needed: {shown:#?}");
}

#[test]
fn cut_connections_haste_and_trouble_are_overcome() {
    if !ready() {
        return;
    }
    let (scratch, server) = with_image("random-large");
    for faults in [&["cut"][..], &["cut", "norange"], &["busy"], &["broken"], &["busy", "broken", "slow"]] {
        let proxy = faulty(&server, faults);
        let store = Scratch::new();
        let pulled = store.image(&["pull", &proxy.reference()]);
        if faults == ["cut", "norange"] {
            // Every connection ends at the same byte: the pull must report it and end.
            pulled.refused("the connection");
            continue;
        }
        pulled.good();
        if faults == ["cut"] {
            let ranges = proxy.requests().iter().filter(|line| line.contains("bytes=")).count();
            assert!(ranges >= 4, "{:#?}", proxy.requests());
        }
    }
    drop(scratch);
}

#[test]
fn a_registry_that_says_when_to_come_back_is_asked_then_and_no_sooner() {
    if !ready() {
        return;
    }
    let (_scratch, server) = with_image("layered");
    let first = Scratch::new().image(&["pull", &faulty(&server, &["later=2"]).reference()]).good();
    assert!(first.took >= Duration::from_secs(2), "{:?}", first.took);
    assert!(first.err.contains("429 Too Many Requests; trying again in 2.0 s"), "{}", first.err);
    // Do not wait for a day.
    let tomorrow = Scratch::new().image(&["pull", &faulty(&server, &["later=86400"]).reference()]);
    assert!(tomorrow.took < Duration::from_secs(10), "{:?}", tomorrow.took);
    let refused = tomorrow.refused("429 Too Many Requests");
    assert!(refused.err.contains("try again later"), "{}", refused.err);
}

#[test]
fn a_layer_that_another_image_has_is_neither_fetched_nor_unpacked_again() {
    if !ready() {
        return;
    }
    let (scratch, full) = (Scratch::new(), Scratch::new());
    let server = registry(&scratch, "");
    for (name, seed) in [("one", "a"), ("two", "bb")] {
        let reference = format!("{}/team/{name}:1", server.host());
        full.image(&["load", &scratch.layout("shared", seed), "--name", &reference]).good();
        full.image(&["push", &reference]).good();
    }
    let proxy = faulty(&server, &[]);
    let pull = |name: &str| scratch.image(&["pull", &format!("{}/team/{name}:1", proxy.host())]).good();
    let layers = || -> Vec<_> {
        let folder = std::fs::read_dir(scratch.path("store/layers")).unwrap();
        folder.map(|entry| entry.unwrap()).map(|entry| (entry.file_name(), entry.metadata().unwrap().ino())).collect()
    };
    pull("one");
    let (before, asked) = (layers(), proxy.requests().len());
    let second = pull("two");
    let after = layers();
    assert!(second.err.contains("there already"), "{}", second.err);
    assert!(before.len() == 2 && after.len() == 3, "{before:?} {after:?}");
    // The folder of the one that both have is the one that it was.
    assert_eq!(after.iter().filter(|layer| before.contains(layer)).count(), 2, "{before:?} {after:?}");
    // Its manifest, its config and its own layer.
    let requests = proxy.requests().split_off(asked);
    let blobs: Vec<_> = requests.iter().filter(|line| line.starts_with("GET ") && line.contains("/blobs/")).collect();
    assert_eq!(blobs.len(), 2, "{requests:#?}");
}

#[test]
fn credentials_are_found_where_docker_and_podman_keep_them() {
    if !ready() {
        return;
    }
    let (scratch, home) = (Scratch::new(), Scratch::new());
    let server = registry(&scratch, &servers::password(&scratch));
    let layout = scratch.layout("layered", "gzip");
    scratch.image(&["load", &layout, "--name", &server.reference()]).good();
    let (me, nobody) = ("bWU6c2VjcmV0", "bWU6Z3Vlc3M="); // me:secret, me:guess
    let push = |places: &[(&str, &str)], variables: &[(&str, &str)]| {
        for folder in ["run", ".config", ".docker", "docker", "elsewhere"] {
            let _ = std::fs::remove_dir_all(home.path(folder));
        }
        for (place, auth) in places {
            let place = home.path(place);
            std::fs::create_dir_all(std::path::Path::new(&place).parent().unwrap()).unwrap();
            std::fs::write(place, format!(r#"{{"auths":{{"{}":{{"auth":"{auth}"}}}}}}"#, server.host())).unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_brig"));
        command.args(["image", "--store", &scratch.path("store"), "push", &server.reference()]);
        for name in ["REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_CONFIG"] {
            command.env_remove(name);
        }
        let variables = variables.iter().map(|(name, value)| (name, home.path(value)));
        support::run(command.env("HOME", home.path("")).envs(variables))
    };
    let runtime = ("XDG_RUNTIME_DIR", "run");
    push(&[], &[]).refused("log in first");
    push(&[("run/containers/auth.json", me)], &[runtime]).good();
    push(&[(".config/containers/auth.json", me)], &[]).good();
    push(&[("docker/config.json", me)], &[("DOCKER_CONFIG", "docker")]).good();
    push(&[(".docker/config.json", me)], &[]).good();
    push(&[("elsewhere/file", me)], &[("REGISTRY_AUTH_FILE", "elsewhere/file")]).good();
    // The first that knows the registry is the one that is believed.
    let both = |first, second| [("run/containers/auth.json", first), (".docker/config.json", second)];
    push(&both(me, nobody), &[runtime]).good();
    push(&both(nobody, me), &[runtime]).refused("401 Unauthorized");
}

#[test]
fn an_ordinary_user_pulls_and_pushes_too() {
    if !ready() || skipped("root, to become somebody else", support::is_root() && support::has("setpriv")) {
        return;
    }
    let (scratch, server) = with_image("layered");
    let (own, brig) = (scratch.path("own"), scratch.path("brig"));
    std::fs::create_dir(&own).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_brig"), &brig).unwrap();
    support::run(Command::new("chmod").args(["a+rx", &scratch.path(""), &brig])).good();
    support::run(Command::new("chown").args(["12345:12345", &own])).good();
    let (here, there) = (server.reference(), format!("{}/other/tool:2", server.host()));
    let text = format!(
        "brig() {{ {brig} image --store {own}/$store \"$@\"; }}; store=one; brig pull {here}; brig tag {here} {there}; brig push {there}; \
         store=two; brig pull {there}; brig verify; brig pull {there}; brig unpack {there} {own}/b; cat {own}/b/rootfs/d/stays"
    );
    let user = ["--reuid=12345", "--regid=12345", "--clear-groups", "sh", "-ec", &text];
    let ran = support::run(Command::new("setpriv").args(user).env("HOME", &own)).good();
    assert!(ran.err.contains("is up to date") && ran.out.ends_with("changed"), "{} {}", ran.out, ran.err);
}

#[test]
fn a_download_that_was_killed_goes_on_where_it_was() {
    if !ready() {
        return;
    }
    let (scratch, server) = with_image("random-large");
    let slow = faulty(&server, &["slow"]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_brig"))
        .args(["image", "--store", &scratch.path("store"), "pull", &slow.reference()])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let kept = || -> u64 {
        let Ok(entries) = std::fs::read_dir(scratch.path("store/temporary")) else { return 0 };
        let partial = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("partial-"));
        partial.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
    };
    let mut waited = 0;
    while kept() == 0 && waited < 1000 {
        std::thread::sleep(Duration::from_millis(10));
        waited += 1;
    }
    child.kill().and_then(|()| child.wait()).unwrap();
    let kept = kept();
    assert!(kept > 0, "nothing was kept");
    let proxy = faulty(&server, &[]);
    scratch.image(&["pull", &proxy.reference()]).good();
    let requests = proxy.requests();
    assert!(requests.iter().any(|line| line.contains("bytes=")), "{requests:#?}");
}

#[test]
fn a_killed_pull_leaves_a_store_that_verifies_and_goes_on() {
    if !ready() {
        return;
    }
    let (scratch, server) = with_image("random-large");
    let full = Scratch::new().image(&["pull", &server.reference()]).good().took;
    for round in 0..kills() {
        kill_somewhere(brig(&scratch, &["pull", &server.reference()]), round, full.mul_f64(1.2));
        let verified = scratch.image(&["verify"]).good();
        assert!(!verified.out.contains("damaged"), "round {round}: {}", verified.out);
        scratch.image(&["pull", &server.reference()]).good();
        assert!(scratch.image(&["verify"]).good().out.contains("1 image, 3 layers"), "round {round}");
        scratch.image(&["rm", &server.reference()]).good();
        scratch.image(&["prune"]).good();
    }
    assert_eq!(left_over(&scratch), Vec::<String>::new());
}

#[test]
fn what_is_not_what_it_should_be_is_refused_and_leaves_nothing() {
    if !ready() {
        return;
    }
    let (scratch, server) = with_image("random-large");
    let wrong = faulty(&server, &["wrong"]);
    scratch.image(&["pull", &wrong.reference()]).refused("its content is `sha256:");
    assert_eq!(scratch.image(&["ls", "--json"]).good().out.trim(), "[]");
    let foreign = faulty(&server, &["foreign"]);
    scratch.image(&["pull", &foreign.reference()]).refused("404");
    let missing = format!("127.0.0.1:{}/team/none:1", server.port);
    let refused = scratch.image(&["pull", &missing]).refused("pull `127.0.0.1");
    assert!(refused.err.contains("404") && refused.err.contains("check the name and the tag"), "{}", refused.err);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    scratch.image(&["pull", &format!("127.0.0.1:{closed}/x")]).refused("refused");
}

/// The advice of `E-IMAGE` must help, though the store has a blob of the right name and length.
#[test]
fn a_damaged_blob_of_the_store_is_fetched_again() {
    if !ready() {
        return;
    }
    let (scratch, server) = with_image("layered");
    scratch.image(&["pull", &server.reference()]).good();
    let inspected: serde_json::Value =
        serde_json::from_str(&scratch.image(&["inspect", &server.reference()]).good().out).unwrap();
    let digest = inspected[0]["layer_blobs"][0]["digest"].as_str().unwrap();
    let blob = scratch.path(&format!("store/blobs/{}", digest.replace(':', "/")));
    let mut bytes = std::fs::read(&blob).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 255;
    std::fs::write(&blob, bytes).unwrap();
    let bottom = inspected[0]["layers"].as_array().unwrap().last().unwrap().as_str().unwrap();
    std::fs::remove_dir_all(std::path::Path::new(bottom).parent().unwrap()).unwrap();
    let pulled = scratch.image(&["pull", &server.reference()]).good();
    assert!(pulled.err.contains("the store's copy of"), "{}", pulled.err);
    scratch.image(&["verify"]).good();
}

/// A registry whose only layer is said to have `size` bytes and never ends.
fn endless(size: u64, kind: &str) -> Server {
    servers::talking(Command::new("python3").arg(support::script("endless.py")).args([&size.to_string(), kind]))
}

/// Parts of blobs that wait for the rest.
fn partial(scratch: &Scratch) -> usize {
    let names = std::fs::read_dir(scratch.path("store/temporary")).unwrap();
    names.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("partial-")).count()
}

#[test]
fn a_layer_that_is_said_to_be_too_large_is_not_asked_for() {
    let scratch = Scratch::new();
    let server = endless(1_000_000_000_000_000, "junk");
    for (limit, reason) in [("bytes=1000000", "more than 1000000 bytes"), ("depth=255", "more than 137438953472 bytes")]
    {
        let refused = scratch.image(&["pull", &server.reference(), "--limit", limit]).refused(reason);
        assert!(refused.err.contains("--limit"), "{}", refused.err);
    }
    let requests = server.requests();
    assert!(!requests.is_empty() && !requests.iter().any(|request| request.contains("11111111")), "{requests:#?}");
}

#[test]
fn what_is_no_archive_is_neither_read_to_its_end_nor_kept() {
    let scratch = Scratch::new();
    // An hour of it, at the speed of a disk.
    let server = endless(100_000_000_000, "junk");
    let refused = scratch.image(&["pull", &server.reference()]).refused("unpack the layer");
    assert!(refused.took < Duration::from_secs(60), "{:?}", refused.took);
    assert_eq!(partial(&scratch), 0);
}

#[test]
fn a_pull_that_filled_the_disk_gives_it_back() {
    if skipped("root", support::is_root()) {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.layout("layered", "gzip");
    let server = endless(1_000_000_000, "tar");
    let (brig, store) = (env!("CARGO_BIN_EXE_brig"), scratch.path("store"));
    std::fs::create_dir(&store).unwrap();
    let text = format!(
        "mount -t tmpfs -o size=24m none {store}; {brig} image --store {store} pull {} && exit 1; ls {store}/temporary; \
         {brig} image --store {store} load {layout} --name x",
        server.reference()
    );
    let ran = support::run(Command::new("unshare").args(["-m", "sh", "-c", &text])).good();
    assert!(ran.err.contains("No space left on device"), "{}", ran.err);
    assert!(!ran.out.contains("partial-"), "{}", ran.out);
}

#[test]
fn a_mirror_is_asked_first_and_the_registry_if_it_has_nothing() {
    if !ready() {
        return;
    }
    let (scratch, server) = with_image("layered");
    let proxy = faulty(&server, &[]);
    let mirror = format!("registry.invalid=http://127.0.0.1:{}", proxy.port);
    scratch.image(&["pull", "registry.invalid/team/tool:1", "--mirror", &mirror]).good();
    assert!(scratch.image(&["ls"]).good().out.contains("registry.invalid/team/tool:1"));
    let none = format!("{}=http://127.0.0.1:{}/nothing", server.reference().split('/').next().unwrap(), proxy.port);
    let second = Scratch::new();
    let pulled = second.image(&["pull", &server.reference(), "--mirror", &none]).good();
    assert!(pulled.err.contains("trying the next registry"), "{}", pulled.err);
}

/// A pull that has its small bottom layer and waits for a large one, for as long as a slow line takes.
fn slow_pull(scratch: &Scratch, server: &Server) -> (Child, Server) {
    let slow = faulty(server, &["slow"]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_brig"))
        .args(["image", "--store", &scratch.path("store"), "pull", &slow.reference()])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let committed = || std::fs::read_dir(scratch.path("store/layers")).is_ok_and(|mut layers| layers.next().is_some());
    for _ in 0..1000 {
        if committed() {
            return (child, slow);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("no layer came");
}

#[test]
fn a_prune_in_the_midst_of_a_pull_neither_waits_nor_takes_what_has_come() {
    if !ready() {
        return;
    }
    let (scratch, server) = with_image("bottom-first");
    let (mut pull, _slow) = slow_pull(&scratch, &server);
    let prune = scratch.image(&["prune"]).good();
    assert!(prune.took < Duration::from_millis(1500), "it waited {:?}", prune.took);
    assert!(pull.try_wait().unwrap().is_none(), "the pull was over before");
    assert!(pull.wait().unwrap().success());
    scratch.image(&["verify"]).good();
    let other = Scratch::new();
    let (mut pull, _slow) = slow_pull(&other, &server);
    other.weakened("image-reservation", &["prune"]).good();
    assert!(!pull.wait().unwrap().success(), "without reservations its layer is taken away");
}

#[test]
fn a_task_fetches_the_image_that_is_not_there_and_no_other() {
    if !ready() || skipped("root", support::is_root()) {
        return;
    }
    let (scratch, server) = with_image("runnable");
    let proxy = faulty(&server, &[]);
    let store = scratch.path("store");
    let task = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_brig"));
        command.args(["run", "--store", &store, "--image", &proxy.reference()]).args(flags).env("BRIG_WEAKEN", "");
        support::run(&mut command)
    };
    let never = task(&["--pull", "never"]);
    assert_eq!(never.status, 125, "{}", never.err);
    assert!(
        never.err.contains("the store has no such image") || never.err.contains("not in the store"),
        "{}",
        never.err
    );
    assert!(proxy.requests().is_empty());
    let first = task(&[]);
    assert_eq!((first.status, first.out.as_str()), (0, "hello\n"), "{}", first.err);
    assert!(first.err.contains(": done"), "progress: {}", first.err);
    let after = proxy.requests().len();
    assert_eq!(task(&[]).out, "hello\n");
    assert_eq!(proxy.requests().len(), after, "it was there, and was asked for again");
    assert_eq!(task(&["--pull", "always"]).out, "hello\n");
    assert_eq!(proxy.requests().len(), after + 1, "an image that is there is one request");
    let absent = format!("127.0.0.1:{}/team/none:1", server.port);
    let mut command = Command::new(env!("CARGO_BIN_EXE_brig"));
    let absent = support::run(command.args(["run", "--store", &store, "--image", &absent]).env("BRIG_WEAKEN", ""));
    assert_eq!(absent.status, 125);
    assert!(absent.err.contains("404") && absent.err.matches("error:").count() == 1, "{}", absent.err);
}

#[test]
fn pull_from_a_registry_that_sends_byte_by_byte_ends_with_a_clear_error() {
    if !ready() {
        return;
    }
    let (scratch, server) = with_image("plain");
    let proxy = faulty(&server, &["trickle"]);
    let weak = Scratch::new();
    let mut held = support::brig(&weak, &["pull", &proxy.reference()]);
    let mut held = held.env("BRIG_WEAKEN", "image-least-rate").spawn().unwrap();
    let ran = scratch.image(&["pull", &proxy.reference()]).refused("bytes a second");
    assert!(ran.took < Duration::from_secs(60) && ran.err.contains("--mirror"), "{:?} {}", ran.took, ran.err);
    std::thread::sleep(Duration::from_secs(4));
    let ended = held.try_wait().unwrap();
    held.kill().and_then(|()| held.wait()).unwrap();
    if !skipped("the feature `weakened`", cfg!(feature = "weakened")) {
        assert!(ended.is_none(), "the control: without the least rate the pull goes on");
    }
}
