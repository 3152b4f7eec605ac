//! The broker's secrets in an image: its programs trust the authority, and the image's certificates stay.

use super::broker::VALUE;
use super::world::World;
use crate::support::{Image, Lab, Task, has_program};
use serde_json::json;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A task with a secret, in this image of the lab's.
fn brokered_in<'lab>(world: &World, lab: &'lab Lab, image: &str) -> Task<'lab> {
    world.brokered(lab, VALUE, "").args(["--pull", "never", "--image", &format!("{image}:1")])
}

/// Prints the answer by Java, which compiles it itself.
const JAVA: &str = "import java.net.URI; import java.net.http.*;
public class Ask { public static void main(String[] a) throws Exception {
    var request = HttpRequest.newBuilder(URI.create(\"https://a.test:8443/java\")).build();
    System.out.print(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body()); } }
";

#[test]
fn the_programs_of_an_image_of_debians_trust_the_authority() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let ask = "printf 'GET /openssl HTTP/1.1\\r\\nHost: a.test:8443\\r\\nConnection: close\\r\\n\\r\\n' | \
               openssl s_client -quiet -verify_return_error -connect a.test:8443 -servername a.test";
    let python = "import urllib.request as u; print(u.urlopen('https://a.test:8443/python').read().decode())";
    let requests = "import requests; print(requests.get('https://a.test:8443/requests').text)";
    let node = "fetch('https://a.test:8443/node').then(r => r.text()).then(t => process.stdout.write(t))";
    let mut clients = vec![
        ("curl", "curl", "curl -sS https://a.test:8443/curl".to_owned()),
        ("curl", "bare", "env -i curl -sS https://a.test:8443/bare".to_owned()),
        ("wget", "wget", "env -i wget -qO- https://a.test:8443/wget".to_owned()),
        ("openssl", "openssl", format!("env -u SSL_CERT_FILE {ask}")),
        ("git", "git", "git ls-remote https://a.test:8443/git 2>&1 | grep -c 'not found'".to_owned()),
        ("python3", "python", format!("env -u SSL_CERT_FILE python3 -c \"{python}\"")),
        ("python3-requests", "requests", format!("python3 -c \"{requests}\"")),
    ];
    if has_program("node") {
        clients.push(("nodejs", "node", format!("node -e \"{node}\"")));
    }
    if has_program("java") && Path::new("/etc/ssl/certs/java/cacerts").exists() {
        clients.push(("default-jre-headless", "java", "java Ask.java".to_owned()));
    }
    let packages: Vec<_> = clients.iter().map(|(package, ..)| *package).chain(["coreutils", "dash"]).collect();
    Image::new(&lab, "debian").packages(&packages).load();
    let script: String = clients.iter().map(|(_, name, script)| format!("echo {name}:; {script}\n")).collect();
    let task = brokered_in(&world, &lab, "debian");
    lab.file("work/Ask.java", JAVA);
    let run = task.sh(&script);
    let heard = world.heard();
    for (_, name, _) in &clients {
        let line = format!("a.test GET /{name}");
        let arrived = heard.lines().any(|each| each.starts_with(&line) && each.contains(&format!("<Bearer {VALUE}>")));
        assert!(arrived, "{name}: {heard}\n{run:#?}");
    }
    assert!(!run.stderr.contains(VALUE), "{run:#?}");
    // Nothing but what a rule names.
    let script = "curl -sS -m 5 https://b.test:8443/; curl -sS -m 5 https://1.1.1.1/; curl -sS --cacert /workspace/ca.pem --capath /nowhere https://a.test:8443/";
    let run = brokered_in(&world, &lab, "debian").sh(script);
    assert!(run.stderr.contains("Could not resolve host: b.test"), "{run:#?}");
    assert!(run.stderr.contains("Failed to connect to 1.1.1.1") || run.stderr.contains("unreachable"), "{run:#?}");
    assert!(run.stderr.contains("certificate"), "the host's own certificate was seen: {run:#?}");
}

/// An image's own certificates; only their number and surroundings count.
const KEPT: &str = "# the image's own\n-----BEGIN CERTIFICATE-----\nkept\n-----END CERTIFICATE-----";

#[test]
fn the_images_own_certificates_stay_and_the_authority_comes_to_each_place() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let environment = ["JAVA_HOME=/opt/java", "SSL_CERT_FILE=/opt/own.pem", "REQUESTS_CA_BUNDLE=/opt/own.pem"];
    let mut image = Image::new(&lab, "places")
        .config(json!({ "Env": environment }))
        .file("etc/ssl/certs/ca-certificates.crt", KEPT, 0o444)
        .file("etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", KEPT, 0o444)
        .file("etc/ssl/ca-bundle.pem", "", 0o644)
        .file("opt/java/lib/security/cacerts", "the image's own", 0o644);
    let layer = image.layer("--owner=0 --group=0");
    std::fs::create_dir_all(layer.join("etc/pki/tls/certs")).unwrap();
    symlink("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", layer.join("etc/pki/tls/certs/ca-bundle.crt"))
        .unwrap();
    image.load();
    let script = "exec 2>&1; for f in /etc/ssl/certs/ca-certificates.crt /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem; do \
                  head -n 1 $f; grep -c BEGIN $f; tail -n 1 $f; done; grep -c BEGIN /etc/ssl/certs/brig.pem; ls -l /etc/pki/tls/certs; \
                  grep -c the.image /opt/java/lib/security/cacerts; head -c 4 /opt/java/lib/security/cacerts | od -An -tx1; \
                  ls /etc/pki/java /etc/ssl/certs/java; echo $SSL_CERT_FILE $REQUESTS_CA_BUNDLE";
    let script = script.replace("head -n 1", "sed -n 1p").replace("tail -n 1", "sed -n '$p'");
    let run = brokered_in(&world, &lab, "places").sh(&script);
    let of_file = "# the image's own\n2\n-----END CERTIFICATE-----\n";
    assert!(run.stderr.starts_with(&format!("{of_file}{of_file}1\n")), "{run:#?}");
    assert!(run.stderr.contains("ca-bundle.crt -> /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"), "{run:#?}");
    assert!(run.stderr.contains("\n0\n fe ed fe ed\n"), "Java's store is not another: {run:#?}");
    assert!(
        run.stderr.contains("/etc/pki/java: No such file") && run.stderr.contains("/etc/ssl/certs/java: No such"),
        "{run:#?}"
    );
    let bundle = "/etc/ssl/certs/ca-certificates.crt";
    assert!(run.stderr.ends_with(&format!("{bundle} {bundle}\n")), "{run:#?}");
    // The caller's own word holds.
    let run = brokered_in(&world, &lab, "places").args(["--env", "SSL_CERT_FILE=/mine"]).sh("echo $SSL_CERT_FILE");
    assert_eq!(run.stderr, "/mine\n", "{run:#?}");
    // An image without any has the machine's and the authority's.
    Image::new(&lab, "none").load();
    let run = brokered_in(&world, &lab, "none").sh("grep -c BEGIN /etc/ssl/certs/ca-certificates.crt; ls /etc/pki");
    let count: usize = run.stderr.lines().next().unwrap().parse().unwrap();
    assert!(count > 1 && run.stderr.contains("No such file"), "{run:#?}");
}

#[test]
fn a_place_of_certificates_that_leads_elsewhere_is_changed_inside_or_refused() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let outside = lab.file("outside.pem", KEPT);
    let check = |name: &str, make: &dyn Fn(&Path)| {
        let mut image = Image::new(&lab, name);
        let layer = image.layer("--owner=0 --group=0");
        std::fs::create_dir_all(layer.join("etc/ssl/certs")).unwrap();
        make(&layer.join("etc/ssl/certs/ca-certificates.crt"));
        image.load();
        brokered_in(&world, &lab, name).sh("grep -c BEGIN /etc/ssl/certs/ca-certificates.crt; ls -l /etc/ssl/certs")
    };
    let target = outside.clone();
    let run = check("link", &move |at| symlink(&target, at).unwrap());
    assert!(run.stderr.lines().next().unwrap().parse::<usize>().is_ok_and(|count| count > 1), "{run:#?}");
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), KEPT);
    let run = check("folder", &|at| std::fs::create_dir(at).unwrap());
    assert_eq!(run.outcome(), "start_failed", "{run:#?}");
    let error = run.receipt()["error"]["message"].as_str().unwrap().to_owned();
    assert!(error.contains("/etc/ssl/certs/ca-certificates.crt") && error.contains("is not a file"), "{run:#?}");
    // A file of the kernel's behind a link is not the image's: it stays.
    let run = check("kernel", &|at| symlink("/proc/self/oom_score_adj", at).unwrap());
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains(" ca-certificates.crt\n"), "{run:#?}");
}
