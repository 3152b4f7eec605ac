#!/usr/bin/env python3
"""A registry's bad days: a proxy before a real registry that asks for tokens and misbehaves as told.

usage: registry.py UPSTREAM-PORT [FAULT...]

Prints its port on the first line, then one line a request. Faults: token (asks for a bearer token, user me:secret), lasts=SECONDS
(how long those tokens are said to be good), cut (closes every blob after some bytes), busy (429 with Retry-After first),
later=SECONDS (the same once, with this time), broken (500 first), wrong (other bytes in blobs), slow, trickle (two bytes a second in blobs), redirect (blobs come from
another host name), asks (that other host asks for a token), forgets (refuses the first PUT to each blob's upload, and knows its address no more), realm=URL (sends for tokens there), foreign (names another digest for tags), norange (ignores Range).
"""
import base64
import http.client
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

upstream, faults = int(sys.argv[1]), dict(fault.partition("=")[::2] for fault in sys.argv[2:])
tokens, counts, lock = set(), {}, threading.Lock()


def first_times(key, times):
    with lock:
        counts[key] = counts.get(key, 0) + 1
        return counts[key] <= times


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do(self):
        host = self.headers.get("Host", "")
        authorization = self.headers.get("Authorization", "")
        print(self.command, host.partition(":")[0], self.path.partition("?")[0], authorization.partition(" ")[0] or "-",
              self.headers.get("Range", "-"), flush=True)
        length = int(self.headers.get("Content-Length", 0) or 0)
        body = self.rfile.read(length) if length else b""
        port = self.server.server_address[1]
        if self.path.startswith("/token"):
            wanted = "Basic " + base64.b64encode(b"me:secret").decode()
            if authorization != wanted:
                return self.answer(401, b'{"errors":[{"message":"wrong name or password"}]}')
            scope = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query).get("scope", [""])[0]
            tokens.add(f"t-{len(tokens)}")
            return self.answer(200, ('{"token":"%s","expires_in":%s,"scope":"%s"}' % (sorted(tokens)[-1], faults.get("lasts", 300), scope)).encode())
        redirected = "redirected" in self.path
        if ("token" in faults or "realm" in faults) and not redirected and authorization.removeprefix("Bearer ") not in tokens:
            realm = faults.get("realm") or f"http://{host}/token"
            scope = "repository:x:pull"
            return self.answer(401, b'{"errors":[{"message":"authentication required"}]}',
                               [("WWW-Authenticate", f'Bearer realm="{realm}",service="test",scope="{scope}"')])
        blob = "/blobs/sha256:" in self.path
        if "busy" in faults and first_times(self.path + "busy", 2):
            return self.answer(429, b'{"errors":[{"message":"slow down"}]}', [("Retry-After", "0")])
        if "later" in faults and first_times("later", 1):
            return self.answer(429, b'{"errors":[{"message":"slow down"}]}', [("Retry-After", faults["later"])])
        if "broken" in faults and first_times(self.path + "broken", 2):
            return self.answer(500, b"oops")
        if "forgets" in faults and self.command == "PUT" and "/blobs/uploads/" in self.path:
            digest = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)["digest"][0]
            upload = self.path.partition("?")[0]
            if first_times(digest, 1):
                counts[upload] = 1
                return self.answer(503, b"oops")
            if upload in counts:
                return self.answer(404, b'{"errors":[{"message":"blob upload unknown"}]}')
        if redirected and "asks" in faults:
            return self.answer(401, b"", [("WWW-Authenticate", f'Bearer realm="http://127.0.0.1:{port}/token"')])
        if "redirect" in faults and blob and not redirected and self.command == "GET":
            other = f"http://localhost:{port}/redirected{self.path}"
            return self.answer(307, b"", [("Location", other)])
        path = self.path.removeprefix("/redirected")
        connection = http.client.HTTPConnection("127.0.0.1", upstream)
        drop = {"host", "connection", "authorization"} | ({"range"} if "norange" in faults else set())
        headers = {name: value for name, value in self.headers.items() if name.lower() not in drop}
        connection.request(self.command, path, body, {**headers, "Host": f"127.0.0.1:{port}"})
        response = connection.getresponse()
        data = response.read()
        if "wrong" in faults and blob and len(data) > 2000:
            data = data[:1000] + bytes([data[1000] ^ 255]) + data[1001:]
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() == "docker-content-digest" and "foreign" in faults:
                value = "sha256:" + "0" * 64
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", response.getheader("Content-Length") if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if "cut" in faults and blob and len(data) > 20_000:
            self.wfile.write(data[:20_000])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return None
        if "trickle" in faults and blob:
            for at in range(len(data)):
                self.wfile.write(data[at:at + 1])
                self.wfile.flush()
                time.sleep(0.5)
            return None
        if "slow" in faults and blob:
            for at in range(0, len(data), 4096):
                self.wfile.write(data[at:at + 4096])
                self.wfile.flush()
                time.sleep(0.02)
            return None
        self.wfile.write(data)
        return None

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
