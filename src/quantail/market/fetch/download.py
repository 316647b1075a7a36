"""One file over HTTP: resumed where it was cut off, compared with its checksum, in place only when it is whole."""

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from quantail.errors import InputError, SourceError

BLOCK = 1 << 16
GONE = (403, 404, 410)  # what object stores answer for a file that is not there
FAULTS = (OSError, http.client.HTTPException)  # URLError and timeouts are OSErrors


class Patience(NamedTuple):
    """How long to go on trying."""

    tries: int = 5  # in a row without a byte of progress
    pause_seconds: float = 1.0  # before the second try; twice that before the third, and so on
    timeout_seconds: float = 30.0  # of silence


PATIENCE = Patience()


class Missing(SourceError):
    """The file does not exist at its source."""


def download(url: str, path: Path, sha256: str | None = None, patience: Patience = PATIENCE) -> bool:
    """Bring a file here; False if it was here already. What is half done lies in PATH.part, and the next call goes on there."""
    check_url(url)
    part = path.with_name(path.name + ".part")
    if path.exists() and (sha256 is None or hash_of(path) == sha256):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(2):
        transfer(url, part, patience)
        if sha256 is None or hash_of(part) == sha256:
            part.replace(path)
            return True
        part.unlink()  # the rest of another file was put behind the beginning of an old one, or bytes were damaged
        if attempt:
            raise SourceError(f"{url} came twice with another checksum than {sha256[:12]}…; the file at the source is damaged")
    raise AssertionError("unreachable")


def check_url(url: str) -> None:
    """Only HTTP: urllib would open files as well."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url!r} is no web address; needs http:// or https://")


def transfer(url: str, part: Path, patience: Patience) -> None:
    """Fill a file from where it ends, as often as it takes while there is progress."""
    failed, fault = 0, ""
    while failed < patience.tries:
        if failed:
            time.sleep(patience.pause_seconds * 2 ** (failed - 1))
        before = part.stat().st_size if part.exists() else 0
        try:
            if more(url, part, before, patience.timeout_seconds):
                return
            fault = "the connection was closed too early"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in GONE:
                raise Missing(f"{url} is not there ({error.code})") from error
            if error.code == 416:  # nothing lies behind what we have: begin anew
                part.unlink(missing_ok=True)
            fault = f"the server answered {error.code}"
        except FAULTS as error:
            fault = str(error) or type(error).__name__
        progress = part.exists() and part.stat().st_size > before
        failed = 1 if progress else failed + 1
    raise SourceError(f"{url} failed {patience.tries} times in a row ({fault}); call again, and it goes on where it stopped")


def more(url: str, part: Path, before: int, timeout: float) -> bool:
    """Append what the server sends from here on; whether the file is whole."""
    asked = urllib.request.Request(url, headers={"User-Agent": "quantail", **({"Range": f"bytes={before}-"} if before else {})})
    with urllib.request.urlopen(asked, timeout=timeout) as answer:
        resumed = answer.status == 206
        length = answer.headers.get("Content-Length")
        with part.open("ab" if resumed else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
    size = part.stat().st_size
    return length is None or size == int(length) + (before if resumed else 0)


def text_at(url: str, patience: Patience = PATIENCE) -> str:
    """A short text, such as a checksum."""
    check_url(url)
    fault = ""
    for failed in range(patience.tries):
        if failed:
            time.sleep(patience.pause_seconds * 2 ** (failed - 1))
        try:
            asked = urllib.request.Request(url, headers={"User-Agent": "quantail"})
            with urllib.request.urlopen(asked, timeout=patience.timeout_seconds) as answer:
                body: bytes = answer.read(BLOCK)
            return body.decode("utf-8", errors="replace")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in GONE:
                raise Missing(f"{url} is not there ({error.code})") from error
            fault = f"the server answered {error.code}"
        except FAULTS as error:
            fault = str(error) or type(error).__name__
    raise SourceError(f"{url} failed {patience.tries} times in a row ({fault}); call again later")


def hash_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
