//! Trust between brig and registries: TLS with a private authority, wrong certificates, client certificates. Also token
//! servers, credential helpers, mirrors of containerd, and layers mounted from another repository.

use crate::servers::{self, Server, certificates, faulty, free_port, ready, registry, serving, talking, tls, trusting};
use crate::support::{Ran, Scratch, has, run, script, skipped};
use std::process::{Command, Stdio};

/// A scratch with an image `x` in its store, one without, and certificates.
fn begin() -> Option<(Scratch, Scratch, String)> {
    if !ready() || skipped("openssl", has("openssl")) {
        return None;
    }
    let (full, empty) = (Scratch::new(), Scratch::new());
    let layout = full.layout("layered", "7");
    full.image(&["load", &layout, "--name", "x"]).good();
    let certificates = certificates(&full);
    Some((full, empty, certificates))
}

/// `brig image` with another home.
fn at_home(scratch: &Scratch, home: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brig"));
    run(command.args(["image", "--store", &scratch.path("store")]).args(arguments).env("HOME", home))
}

#[test]
fn a_registry_whose_authority_is_named_is_believed_and_no_other() {
    let Some((full, empty, made)) = begin() else { return };
    let ca = trusting(&full, &made);
    let server = registry(&full, &tls(&made, "good"));
    full.image(&["push", "x", &server.reference(), "--cert-dir", &ca]).good();
    empty.image(&["pull", &server.reference(), "--cert-dir", &ca]).good();
    // By the name of the host, where Podman looks too.
    let home = empty.path("home");
    let place = format!("{home}/.config/containers/certs.d/{}", server.host());
    std::fs::create_dir_all(&place).unwrap();
    std::fs::copy(format!("{made}/ca.pem"), format!("{place}/ca.crt")).unwrap();
    at_home(&Scratch::new(), &home, &["pull", &server.reference()]).good();
    // Its certificate is not vouched for: not tried twice, and not without TLS.
    let mirror = format!("registry.invalid=https://{}", server.host());
    let unknown = empty.image(&["pull", "registry.invalid/team/tool:1", "--mirror", &mirror]);
    assert!(unknown.err.contains("is not signed by an authority that this machine trusts"), "{}", unknown.err);
    empty.image(&["pull", &server.reference(), "--plain-http"]).refused("it speaks TLS and was asked without");
    // The authority's word counts for the names and the time that it wrote down.
    for (name, words) in [
        ("other", "is for other.test, 192.0.2.7 and not for this host"),
        ("late", "was good until 2020-02-01T00:00:00Z only"),
        ("alone", "its certificate "),
    ] {
        let wrong = registry(&full, &tls(&made, name));
        let refused = empty.image(&["pull", &wrong.reference(), "--cert-dir", &ca]).refused(words);
        assert!(refused.err.contains("E-CERTIFICATE") && refused.err.contains("hint:"), "{}", refused.err);
        assert!(!refused.err.contains("trying again"), "{}", refused.err);
    }
    let plain = registry(&full, "");
    empty.image(&["pull", &plain.reference(), "--cert-dir", &ca]).refused("is not TLS");
}

#[test]
fn a_registry_that_asks_for_a_certificate_gets_ours() {
    let Some((full, empty, made)) = begin() else { return };
    let ca = trusting(&full, &made);
    let server = registry(&full, &format!("{}    clientcas:\n      - {made}/ca.pem\n", tls(&made, "good")));
    empty
        .image(&["pull", &server.reference(), "--cert-dir", &ca])
        .refused("it accepts no client without a certificate that it knows");
    std::fs::copy(format!("{made}/client.pem"), format!("{ca}/client.cert")).unwrap();
    let half = empty.image(&["pull", &server.reference(), "--cert-dir", &ca]);
    assert!(half.status == 125 && half.err.contains("client.key"), "{}", half.err);
    std::fs::copy(format!("{made}/client.key"), format!("{ca}/client.key")).unwrap();
    full.image(&["push", "x", &server.reference(), "--cert-dir", &ca]).good();
    empty.image(&["pull", &server.reference(), "--cert-dir", &ca]).good();
}

#[test]
fn a_registry_behind_nginx_is_one() {
    let Some((full, empty, made)) = begin() else { return };
    if skipped("nginx", has("nginx")) {
        return;
    }
    let ca = trusting(&full, &made);
    let (upstream, port, at) = (registry(&full, ""), free_port(), full.path(""));
    let places: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {at}/{name};\n"))
        .concat();
    let text = format!(
        "daemon off; master_process off; pid {at}/nginx.pid; error_log stderr;\nevents {{ worker_connections 64; }}\nhttp {{ access_log off; {places}\
         client_max_body_size 0; server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {made}/good.pem; ssl_certificate_key {made}/good.key;\n\
         location /v2/ {{ proxy_pass http://{}; proxy_set_header Host $http_host; proxy_set_header X-Forwarded-Proto $scheme; }} }} }}\n",
        upstream.host()
    );
    std::fs::write(full.path("nginx.conf"), text).unwrap();
    let mut command = Command::new("nginx");
    command.args(["-c", &full.path("nginx.conf"), "-p", &at]).stderr(Stdio::null());
    let server = serving(&mut command, port);
    full.image(&["push", "x", &server.reference(), "--cert-dir", &ca]).good();
    empty.image(&["pull", &server.reference(), "--cert-dir", &ca]).good();
}

/// A registry that believes a token server, both with TLS.
fn with_tokens(scratch: &Scratch, made: &str) -> (Server, Server) {
    let key =
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=tokens.test -keyout signer.key -out signer.pem";
    run(Command::new("sh").args(["-c", key]).current_dir(made)).good();
    let tokens = talking(Command::new("python3").arg(script("tokens.py")).arg(made).arg("good"));
    let auth = format!(
        "auth:\n  token:\n    realm: https://{}/token\n    service: test\n    issuer: tokens\n    rootcertbundle: {made}/signer.pem\n",
        tokens.host()
    );
    (registry(scratch, &format!("{}{auth}", tls(made, "good"))), tokens)
}

fn auths(scratch: &Scratch, text: &str) -> String {
    let path = scratch.path("auths.json");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn an_identity_token_gets_tokens_by_a_form_and_is_sent_to_no_other_host() {
    let Some((full, empty, made)) = begin() else { return };
    let ca = trusting(&full, &made);
    let (server, tokens) = with_tokens(&full, &made);
    let realm = tokens.host();
    let common = |auth: &str| -> Vec<String> {
        ["--cert-dir", &ca, "--allow-realm", &realm, "--auth-file", auth].map(str::to_owned).to_vec()
    };
    let with = |scratch: &Scratch, verb: &[&str], auth: &str| {
        let more = common(auth);
        let arguments: Vec<&str> = verb.iter().copied().chain(more.iter().map(String::as_str)).collect();
        scratch.image(&arguments)
    };
    let identity = auths(&full, &format!(r#"{{"auths":{{"{}":{{"identitytoken":"refresh-me"}}}}}}"#, server.host()));
    with(&full, &["push", "x", &server.reference()], &identity).good();
    with(&empty, &["pull", &server.reference()], &identity).good();
    let asked = tokens.requests();
    assert!(asked.contains(&"POST refresh team/tool:pull,push".to_owned()), "{asked:#?}");
    assert!(asked.contains(&"POST refresh team/tool:pull".to_owned()), "{asked:#?}");
    // A password takes the other way, and a wrong one is shown once.
    let entry =
        |password: &str| format!(r#"{{"auths":{{"{}":{{"username":"me","password":"{password}"}}}}}}"#, server.host());
    let right = auths(&full, &entry("secret"));
    with(&Scratch::new(), &["pull", &server.reference()], &right).good();
    assert!(tokens.requests().contains(&"GET password team/tool:pull".to_owned()));
    let before = tokens.requests().len();
    let wrong = auths(&full, &entry("guess"));
    let refused = with(&Scratch::new(), &["pull", &server.reference()], &wrong).refused("this is not the way in");
    assert!(refused.err.contains("E-CREDENTIALS") && !refused.err.contains("guess"), "{}", refused.err);
    assert_eq!(tokens.requests().len(), before + 1, "a wrong password was tried more than once");
    let old = auths(&full, &format!(r#"{{"auths":{{"{}":{{"identitytoken":"old"}}}}}}"#, server.host()));
    with(&Scratch::new(), &["pull", &server.reference()], &old).refused("this is not the way in");
    // What the token server does not give, the registry refuses.
    let private = format!("{}/private/tool:1", server.host());
    let refused = with(&full, &["push", "x", &private], &identity).refused("401 Unauthorized");
    assert!(refused.err.contains("E-CREDENTIALS"), "{}", refused.err);
}

#[test]
fn layers_that_another_repository_has_are_mounted_and_not_sent() {
    let Some((full, _, made)) = begin() else { return };
    let ca = trusting(&full, &made);
    // By a proxy that sees what is asked, without tokens; then with tokens, which must be good for both.
    let upstream = registry(&full, "");
    let proxy = faulty(&upstream, &[]);
    let [base, tool] = ["team/base:1", "other/tool:1"].map(|name| format!("{}/{name}", proxy.host()));
    full.image(&["tag", "x", &base]).good();
    full.image(&["push", &base]).good();
    let before = proxy.requests().len();
    full.image(&["push", "x", &tool]).good();
    let requests = proxy.requests().split_off(before);
    let count = |what: &str| requests.iter().filter(|line| line.starts_with(what)).count();
    // Three layers come by mount; the config, which is small, and the manifest are sent.
    assert_eq!((count("POST"), count("PUT")), (4, 2), "{requests:#?}");
    Scratch::new().image(&["pull", &tool]).good();
    let (server, tokens) = with_tokens(&full, &made);
    let identity = auths(&full, &format!(r#"{{"auths":{{"{}":{{"identitytoken":"refresh-me"}}}}}}"#, server.host()));
    let realm = tokens.host();
    let flags = ["--cert-dir", &ca, "--allow-realm", &realm, "--auth-file", &identity];
    let push = |name: &str| full.image(&[&["push", "x", name], &flags[..]].concat()).good();
    let [base, tool, hidden] =
        ["team/base:1", "other/tool:1", "third/tool:1"].map(|name| format!("{}/{name}", server.host()));
    push(&base);
    full.image(&["tag", "x", &base]).good();
    push(&tool);
    let asked = tokens.requests();
    assert!(asked.contains(&"POST refresh other/tool:pull,push team/base:pull".to_owned()), "{asked:#?}");
    // A source that may not be read does not stop the push: the layers are sent.
    full.image(&["rm", &base]).good();
    full.image(&["tag", "x", &format!("{}/private/base:1", server.host())]).good();
    push(&hidden);
    Scratch::new().image(&[&["pull", &hidden], &flags[..]].concat()).good();
}

#[test]
fn credential_helpers_are_asked() {
    let Some((full, _, made)) = begin() else { return };
    let there = has("docker-credential-pass") && has("pass") && has("gpg");
    if skipped("docker-credential-pass, pass and gpg", there) {
        return;
    }
    let ca = trusting(&full, &made);
    let server = registry(&full, &format!("{}{}", tls(&made, "good"), servers::password(&full)));
    let (token_server, tokens) = with_tokens(&full, &made);
    let home = full.path("h");
    std::fs::create_dir(&home).unwrap();
    let keep = |host: &str, user: &str, secret: &str| {
        format!(
            r#"echo '{{"ServerURL":"{host}","Username":"{user}","Secret":"{secret}"}}' | docker-credential-pass store"#
        )
    };
    let text = format!(
        "chmod 700 . && gpg --batch --quiet --pinentry-mode loopback --passphrase '' --quick-gen-key me default default never && pass init me && {} && {}",
        keep(&server.host(), "me", "secret"),
        keep(&token_server.host(), "<token>", "refresh-me")
    );
    let shell = |text: &str| {
        run(Command::new("sh").args(["-c", text]).current_dir(&home).env("HOME", &home).env_remove("GNUPGHOME"))
    };
    let kept = shell(&text);
    let realm = tokens.host();
    let pushed = |auth: &str, reference: &str| {
        let flags = ["push", "x", reference, "--cert-dir", &ca, "--allow-realm", &realm, "--auth-file", auth];
        at_home(&full, &home, &flags)
    };
    let by_host = auths(&full, &format!(r#"{{"credHelpers":{{"{}":"pass"}}}}"#, server.host()));
    let one = pushed(&by_host, &server.reference());
    let by_store = full.path("store.json");
    std::fs::write(&by_store, r#"{"credsStore":"pass"}"#).unwrap();
    let all = pushed(&by_store, &server.reference());
    let token = pushed(&by_store, &token_server.reference());
    // What the helper does not know is asked for without credentials.
    let unknown = registry(&full, &format!("{}{}", tls(&made, "good"), servers::password(&full)));
    let nobody = pushed(&by_store, &unknown.reference());
    let absent = auths(&full, r#"{"credsStore":"nowhere"}"#);
    let absent = pushed(&absent, &server.reference());
    shell("gpgconf --kill all");
    kept.good();
    one.good();
    all.good();
    token.good();
    assert!(tokens.requests().contains(&"POST refresh team/tool:pull,push".to_owned()), "{:?}", tokens.requests());
    nobody.refused("log in first");
    let absent = absent.refused("ask the credential helper `nowhere`");
    assert!(absent.err.contains("install `docker-credential-nowhere`"), "{}", absent.err);
}

#[test]
fn mirrors_of_containerd_are_asked_in_the_order_of_the_file() {
    let Some((full, empty, made)) = begin() else { return };
    let server = registry(&full, &tls(&made, "good"));
    let ca = trusting(&full, &made);
    full.image(&["push", "x", &server.reference(), "--cert-dir", &ca]).good();
    let plain = registry(&full, "");
    let (closed, proxy) = (free_port(), faulty(&plain, &[]));
    let hosts = full.path("hosts");
    let write = |more: &str| {
        let text = format!(
            "server = \"https://{}\"\nca = \"{made}/ca.pem\"\n[host.\"http://127.0.0.1:{closed}\"]\ncapabilities = [\"pull\", \"resolve\"]\n{more}\n\
             [host.\"http://{}\"]\ncapabilities = [\"pull\", \"resolve\"]\n",
            server.host(),
            proxy.host()
        );
        std::fs::create_dir_all(format!("{hosts}/registry.invalid")).unwrap();
        std::fs::write(format!("{hosts}/registry.invalid/hosts.toml"), text).unwrap();
    };
    write("");
    // The first is not there, the second has nothing, the third is the registry itself under another name.
    let pulled = empty.image(&["pull", "registry.invalid/team/tool:1", "--hosts-dir", &hosts]).good();
    assert!(
        pulled.err.contains("the registry answers 404 Not Found") && pulled.err.contains("trying the next registry"),
        "{}",
        pulled.err
    );
    // What is down is asked twice, and not again for each layer.
    assert_eq!(pulled.err.matches("Connection refused").count(), 2, "{}", pulled.err);
    assert!(!proxy.requests().is_empty());
    assert!(empty.image(&["ls"]).good().out.contains("registry.invalid/team/tool:1"));
    write("skip_verify = true");
    let refused = empty.image(&["pull", "registry.invalid/team/tool:1", "--hosts-dir", &hosts]);
    refused.refused("`skip_verify` would disable the check of certificates");
}
