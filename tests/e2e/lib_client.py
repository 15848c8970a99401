"""lib_client.py - checks, and requests to the server at SERVE_URL, for the clients of the tests."""

import http.client
import json
import os
import urllib.parse

URL = urllib.parse.urlparse(os.environ["SERVE_URL"])
FAILED = []


def check(holds, what):
    """A failed expectation prints a line that begins with FAIL. The client continues."""
    if not holds:
        FAILED.append(what)
        print(f"FAIL: {what}")


def request(method, path, body=None, headers=None, timeout=60):
    """Returns status, headers (a dict in lower case) and the body."""
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=timeout)
    data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    connection.request(method, path, data, headers or {})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, text
