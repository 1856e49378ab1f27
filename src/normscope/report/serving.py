"""A page that follows a run, served on this machine alone by the standard library's HTTP server.

The page asks for the version every second and fetches the body when the version changed. The server binds only the
loopback address and answers only requests that name it, so that no other site can read a run through the browser.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from normscope.report.document import Section
from normscope.report.page import body, page
from normscope.report.page_file import title_of
from normscope.report.result_files import files_of, sections_of

HOST = "127.0.0.1"


class Live:
    """The latest readable state of some runs; while a file is being written, the state before it is kept."""

    def __init__(self, paths: Sequence[Path], command: str) -> None:
        self._paths, self._command, self._lock = list(paths), command, Lock()
        self._version, self._sections = self._now(), sections_of(self._paths, live=True)

    def latest(self) -> tuple[str, list[Section]]:
        """The version and the sections, read again where a file changed."""
        with self._lock:
            try:
                version = self._now()
                if version != self._version:
                    self._version, self._sections = version, sections_of(self._paths, live=True)
            except (ValueError, OSError):
                pass
            return self._version, self._sections

    def page(self) -> str:
        """The whole page."""
        version, sections = self.latest()
        return page(sections, title=title_of(sections), command=self._command, live=version)

    def body(self) -> str:
        """The part of the page that changes."""
        return body(self.latest()[1], self._command)

    def _now(self) -> str:
        """A hash of the sizes and times of the files and of their write-ahead logs; it changes with every row."""
        stats = []
        for file in (file for path in self._paths for file in files_of(path, live=True)):
            for file_or_log in (file, file.with_name(f"{file.name}-wal")):
                if file_or_log.exists():
                    stats.append((str(file_or_log), file_or_log.stat().st_size, file_or_log.stat().st_mtime_ns))
        return hashlib.sha256(repr(stats).encode()).hexdigest()[:16]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints every error but that of a reader who closed the connection."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def server(live: Live, port: int) -> ThreadingHTTPServer:
    """A bound server; `serve_forever` starts it. Port 0 takes any free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}  # type: ignore[attr-defined]
            if self.headers.get("Host") not in allowed:
                return self._answer(403, "text/plain", "This server answers to its own address alone.")
            made = {
                "/": lambda: ("text/html", live.page()),
                "/body": lambda: ("text/html", live.body()),
                "/state": lambda: ("application/json", json.dumps({"version": live.latest()[0]})),
            }.get(self.path)
            if made is None:
                return self._answer(404, "text/plain", "Nothing is here.")
            return self._answer(200, *made())

        def _answer(self, status: int, content_type: str, text: str) -> None:
            content = text.encode(errors="backslashreplace")
            self.send_response(status)
            self.send_header("Content-Type", f"{content_type}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Prints nothing: the page asks once per second."""

    try:
        return _Server((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"Port {port} on {HOST} cannot be used: {error}. Choose another with --port, or --port 0 for any free one."
        ) from error
