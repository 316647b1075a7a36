"""A local web server that plays the sources of data, also slow, cut off, failing and damaged."""

import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Server:
    """Answers by a function of (path, query); `moods[path]` is a list of what goes wrong, one for each request to come.

    Moods: a number (that status), "cut" (closes half way), "stall" (says nothing more), "slow" (a few bytes at a time),
    "damaged" (other bytes of the same length), "whole" (ignores the range that was asked for).
    """

    def __init__(self, answer):
        self.answer, self.moods, self.asked, self.ranges = answer, {}, Counter(), []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_GET(self):
                server.serve(self)

            def log_message(self, *args):
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def serve(self, handler):
        parts = urlsplit(handler.path)
        self.asked[parts.path] += 1
        moods = self.moods.get(parts.path, [])
        mood = moods.pop(0) if moods else ""
        body = None if isinstance(mood, int) else self.answer(parts.path, {k: v[0] for k, v in parse_qs(parts.query).items()})
        if body is None:
            handler.send_error(mood if isinstance(mood, int) else 404)
            return
        begin = 0
        asked = handler.headers.get("Range")
        self.ranges.append((parts.path, asked))
        if asked and mood != "whole":
            begin = int(asked.removeprefix("bytes=").rstrip("-"))
            if begin >= len(body):
                handler.send_error(416)
                return
        if mood == "damaged":
            body = bytes(byte ^ 1 for byte in body)
        self.send(handler, body[begin:], mood, partial=begin > 0)

    @staticmethod
    def send(handler, body, mood, partial):
        handler.send_response(206 if partial else 200)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Content-Type", "application/json" if body[:1] in (b"{", b"[") else "application/octet-stream")
        handler.end_headers()
        if mood == "slow":
            for at in range(0, len(body), 64):
                handler.wfile.write(body[at : at + 64])
                handler.wfile.flush()
                time.sleep(0.001)
            return
        if mood in ("cut", "stall"):
            handler.wfile.write(body[: len(body) // 2])
            handler.wfile.flush()
            if mood == "stall":
                time.sleep(0.6)
            return
        handler.wfile.write(body)
