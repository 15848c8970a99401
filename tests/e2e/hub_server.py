#!/usr/bin/env python3
"""A server for the part of the Hugging Face hub's API that `rafter pull` uses, with faults on request.

hub_server.py ROOT: serves ROOT/files/ORG/NAME/** as repositories on two ports. It writes the ports to ROOT/ports
("hub cdn") and each request as a line of JSON to ROOT/log. Before each request it reads ROOT/faults (JSON, may be
missing):
  cut N          close the connection after N bytes of a body          stall N      send N bytes, then nothing for 2 s
  cut_listing N  the same for the first listing only                   weak         no ETag
  status {path suffix: [code, times, headers]}                         token T      401 without "Bearer T"
  redirect cdn|loop|relative    to the other port, in an endless loop, to another path
  listing TEXT   the body of the listing                               extra [..]   more files in the listing
  lie {path: {"size" | "sha256" | "oid" | "body": value}}              no_range     ranges are ignored; wrong_range: another range is sent
  no_blobs       the listing has neither sizes nor checksums           by_name      /resolve does not know commits
  chunk_seconds S  seconds between pieces of 16 KiB
"""
import hashlib
import json
import os
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = sys.argv[1]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 200_000  # from this size on a file is stored as in LFS, named by its SHA-256
lock, counts = threading.Lock(), {}


def faults():
    try:
        with open(f"{ROOT}/faults", encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        return {}


def blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def siblings(folder, fault):
    for where, _, names in os.walk(folder):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(where, name), folder)
            with open(os.path.join(where, name), "rb") as f:
                data = f.read()
            row = {"rfilename": path}
            lie = fault.get("lie", {}).get(path, {})
            if not fault.get("no_blobs"):
                row |= {"size": lie.get("size", len(data)), "blobId": lie.get("oid", blob_id(data))}
                if len(data) >= LARGE:
                    row["lfs"] = {"sha256": lie.get("sha256", hashlib.sha256(data).hexdigest()), "size": row["size"], "pointerSize": 134}
            yield row
    yield from fault.get("extra", [])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def refuse(self, code, headers=()):
        body = b'{"error":"no"}'
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def give(self, data, fault, etag=None, cut=None):
        first, last = 0, len(data)
        asked = self.headers.get("Range")
        condition = self.headers.get("If-Range")
        if asked and not fault.get("no_range") and (condition is None or condition == etag):
            first = int(asked.removeprefix("bytes=").split("-")[0])
            if first >= len(data):
                return self.refuse(416)
            if fault.get("wrong_range"):
                first += 1
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last - 1}/{last}")
        else:
            self.send_response(200)
        if etag and not fault.get("weak"):
            self.send_header("ETag", etag)
        self.send_header("Content-Length", str(last - first))
        self.end_headers()
        body = data[first:last]
        limit = cut or fault.get("stall")
        if limit is not None and limit < len(body):
            self.wfile.write(body[:limit])
            self.wfile.flush()
            if not cut:
                time.sleep(2)
            self.connection.shutdown(2)
            self.close_connection = True
            return None
        if fault.get("chunk_seconds"):
            for at in range(0, len(body), 16384):
                self.wfile.write(body[at:at + 16384])
                time.sleep(fault["chunk_seconds"])
        else:
            self.wfile.write(body)
        return None

    def do_GET(self):
        try:
            self.answer()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer(self):
        fault, port = faults(), self.server.server_address[1]
        path = urllib.parse.urlsplit(self.path).path
        with lock, open(f"{ROOT}/log", "a", encoding="utf-8") as f:
            f.write(json.dumps({"cdn": port == PORTS[1], "path": self.path, "host": self.headers.get("Host"), "token": self.headers.get("Authorization"),
                                "range": self.headers.get("Range"), "if_range": self.headers.get("If-Range")}) + "\n")
            counts[path] = counts.get(path, 0) + 1
            seen = counts[path]
        for suffix, (code, times, headers) in fault.get("status", {}).items():
            if path.endswith(suffix):
                with lock:
                    key = ("status", suffix)
                    counts[key] = counts.get(key, 0) + 1
                    due = counts[key] <= times
                if due:
                    return self.refuse(code, headers.items())
        if port == PORTS[0] and fault.get("token") and self.headers.get("Authorization") != f"Bearer {fault['token']}":
            return self.refuse(401, [("X-Error-Code", "GatedRepo"), ("X-Error-Message", "Access to model is \x1b[31mrestricted")])
        parts = [urllib.parse.unquote(p) for p in path.strip("/").split("/")]
        if parts[:2] == ["api", "models"] and parts[4:5] == ["revision"]:
            folder = f"{ROOT}/files/{parts[2]}/{parts[3]}"
            if not os.path.isdir(folder) or parts[5] not in ("main", "v/1", COMMIT):
                return self.refuse(404, [("X-Error-Code", "RevisionNotFound" if os.path.isdir(folder) else "RepoNotFound")])
            text = fault.get("listing") or json.dumps({"id": "/".join(parts[2:4]), "sha": COMMIT, "siblings": list(siblings(folder, fault))})
            return self.give(text.encode(), {}, cut=fault.get("cut_listing") if seen == 1 else None)
        if parts[0] == "elsewhere":
            parts = parts[1:]
        elif fault.get("redirect") == "loop":
            return self.refuse(302, [("Location", self.path)])
        elif port == PORTS[0] and parts[2:3] == ["resolve"] and fault.get("redirect") in ("cdn", "relative"):
            return self.refuse(302, [("Location", f"http://localhost:{PORTS[1]}{self.path}" if fault["redirect"] == "cdn" else "/elsewhere" + self.path)])
        if len(parts) < 5 or parts[2] != "resolve" or parts[3] not in ("main", "v/1", COMMIT) or (fault.get("by_name") and parts[3] == COMMIT):
            return self.refuse(404)
        file = "/".join(parts[4:])
        name = f"{ROOT}/files/{parts[0]}/{parts[1]}/{file}"
        if not os.path.isfile(name):
            return self.refuse(404, [("X-Error-Code", "EntryNotFound")])
        with open(name, "rb") as f:
            data = f.read()
        data = fault.get("lie", {}).get(file, {}).get("body", "").encode() or data
        return self.give(data, fault, '"' + hashlib.md5(data).hexdigest() + '"', fault.get("cut"))


servers = [ThreadingHTTPServer(("", 0), Handler) for _ in range(2)]
PORTS = [s.server_address[1] for s in servers]
for s in servers:
    s.daemon_threads = True
    threading.Thread(target=s.serve_forever, daemon=True).start()
with open(f"{ROOT}/ports.new", "w", encoding="utf-8") as f:
    f.write(f"{PORTS[0]} {PORTS[1]}\n")
os.rename(f"{ROOT}/ports.new", f"{ROOT}/ports")
while os.getppid() != 1:
    time.sleep(0.5)
