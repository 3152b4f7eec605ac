#!/usr/bin/env python3
"""A hostile registry: any image has one layer of the size that was said, and its blob goes on as long as anybody reads.

usage: endless.py SIZE junk|tar

Prints its port on the first line, then one line a request. `junk` is no archive from its first byte on, `tar` one with a file that never ends.
"""
import hashlib
import json
import sys
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

size, kind = int(sys.argv[1]), sys.argv[2]


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


layer = "sha256:" + "1" * 64
config = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/bin/sh"]},
                     "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "2" * 64]}}).encode()
manifest = json.dumps({
    "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(config), "size": len(config)},
    "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer, "size": size}]}).encode()
head = tarfile.TarInfo("file")
head.size = 4 << 30
first = b"\xaa" * 512 if kind == "junk" else head.tobuf(tarfile.USTAR_FORMAT)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do(self):
        print(self.command, self.path, flush=True)
        if self.path.endswith(layer):
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            try:
                self.wfile.write(first)
                while True:
                    self.wfile.write(b"\xaa" * (1 << 20))
            except OSError:
                self.close_connection = True
            return
        body, media = (config, "application/octet-stream") if "/blobs/" in self.path else (manifest, "application/vnd.oci.image.manifest.v1+json")
        self.send_response(200)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Content-Digest", digest(body))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
