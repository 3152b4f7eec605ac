#!/usr/bin/env python3
"""A token server as the distribution specification has it, whose tokens a real registry checks.

usage: tokens.py DIRECTORY [NAME]

Signs by DIRECTORY/signer.key, whose certificate is DIRECTORY/signer.pem; speaks TLS with DIRECTORY/NAME.pem if there is a NAME. Knows the
password `secret` of `me` and the refresh token `refresh-me`, good for all repositories but those below `private/`. Prints its port, then
one line a request: method, grant, and the scopes that it gave.
"""
import base64
import json
import ssl
import subprocess
import sys
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

directory = sys.argv[1]
pack = lambda data: base64.urlsafe_b64encode(data).rstrip(b"=").decode()
with open(f"{directory}/signer.pem") as file:
    certificate = "".join(line.strip() for line in file if not line.startswith("-----"))


def signed(claims):
    header = {"typ": "JWT", "alg": "RS256", "x5c": [certificate]}
    text = ".".join(pack(json.dumps(part).encode()) for part in (header, claims))
    sign = subprocess.run(["openssl", "dgst", "-sha256", "-sign", f"{directory}/signer.key"], input=text.encode(), capture_output=True, check=True)
    return f"{text}.{pack(sign.stdout)}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def give(self, grant, scopes, field):
        access = []
        for scope in scopes:
            kind, name, actions = scope.split(":")
            if not name.startswith("private/"):
                access.append({"type": kind, "name": name, "actions": actions.split(",")})
        print(self.command, grant, *[f"{each['name']}:{','.join(each['actions'])}" for each in access], flush=True)
        now = int(time.time())
        claims = {"iss": "tokens", "sub": "me", "aud": "test", "iat": now, "nbf": now - 5, "exp": now + 300, "jti": str(time.time_ns()), "access": access}
        self.answer(200, {field: signed(claims), "expires_in": 300})

    def refuse(self, grant):
        print(self.command, grant, "refused", flush=True)
        self.answer(401, {"errors": [{"message": "this is not the way in"}]})

    def do_GET(self):
        fields = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)
        if self.headers.get("Authorization", "") != "Basic " + base64.b64encode(b"me:secret").decode() or fields.get("service") != ["test"]:
            return self.refuse("password")
        return self.give("password", fields.get("scope", []), "token")

    def do_POST(self):
        fields = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        one = lambda name: fields.get(name, [""])[0]
        right = one("grant_type") == "refresh_token" and one("refresh_token") == "refresh-me" and one("service") == "test" and one("client_id")
        if self.headers.get("Authorization") or not right:
            return self.refuse("refresh")
        return self.give("refresh", one("scope").split(), "access_token")


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
if len(sys.argv) > 2:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{directory}/{sys.argv[2]}.pem", f"{directory}/{sys.argv[2]}.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
