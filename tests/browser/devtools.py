"""A connection to one page of Chromium, in its DevTools protocol. A call of Selenium takes several
times the processor time."""

import json
import socket
import struct

ALL_SECONDS = 300


class Left(RuntimeError):
    """The page was left before it answered."""


class Page:
    """Sends commands to a page, one at a time. Events are ignored."""

    def __init__(self, address, target):
        """address: host:port of the browser. target: the page's identifier."""
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), ALL_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file, self.number = self.socket.makefile("rb"), 0
        # The key is constant: nobody between the test and the browser stores answers.
        self.socket.sendall(
            f"GET /devtools/page/{target} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: cmFmdGVyJ3MgYnJvd3Nlcg==\r\n\r\n".encode()
        )
        said = self.file.readline().decode().strip()
        if " 101 " not in said:
            raise ConnectionError(f"Chromium refuses a connection: {said}")
        while self.file.readline().strip():
            pass

    def send(self, text):
        """One frame of text. A client's frames are masked; the mask of zeros changes no byte."""
        data = text.encode()
        size = len(data)
        if size < 126:
            head = struct.pack("!BB", 0x81, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x81, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x81, 0x80 | 127, size)
        self.socket.sendall(head + bytes(4) + data)

    def read(self, size):
        data = self.file.read(size)
        if len(data) < size:
            raise ConnectionError("Chromium has closed the connection")
        return data

    def receive(self):
        """The next message. Chromium sends it in frames without a mask."""
        parts = []
        while True:
            first, size = self.read(2)
            if size == 126:
                size = struct.unpack("!H", self.read(2))[0]
            elif size == 127:
                size = struct.unpack("!Q", self.read(8))[0]
            data = self.read(size)
            kind = first & 0x0F
            if kind == 8:
                raise ConnectionError("Chromium has closed the connection")
            if kind < 8:  # not a ping
                parts.append(data)
                if first & 0x80:
                    return json.loads(b"".join(parts))

    def command(self, name, **arguments):
        self.number += 1
        self.send(json.dumps({"id": self.number, "method": name, "params": arguments}))
        while True:
            said = self.receive()
            if said.get("id") == self.number:
                break
        if "error" in said:
            text = f"{name}: {said['error']['message']}"
            raise (Left if "navigated" in text or "context was destroyed" in text else RuntimeError)(text)
        return said["result"]

    def value(self, expression):
        """The value of an expression, or of its promise. For a node, the name of the node."""
        said = self.command(
            "Runtime.evaluate",
            expression=f"((value) => value instanceof Node ? value.nodeName : value)({expression}\n)",
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if "exceptionDetails" in said:
            fault = said["exceptionDetails"]
            text = fault.get("exception", {}).get("description", fault["text"])
            raise RuntimeError(f"{text}, in: {expression}")
        return said["result"].get("value")

    def close(self):
        self.file.close()
        self.socket.close()
