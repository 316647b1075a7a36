"""Ctrl-C and SIGTERM as a request: the iteration that runs is finished and saved; a second one stops at once."""

import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While it is open, `name` tells which signal has come, if any; only a main thread hears signals."""

    def __init__(self) -> None:
        self.name = ""
        self.process = os.getpid()
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self.before = {one: signal.signal(one, self.hear) for one in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for one, handler in self.before.items():
            signal.signal(one, handler)

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal. Environments in processes of their own inherit this: Ctrl-C, which reaches them too, is
        the parent's affair, and all else ends them as ever."""
        if os.getpid() != self.process:
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if self.name:
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name
        with suppress(OSError):  # not `print`: a handler may interrupt one
            os.write(2, f"\n{self.name}: this iteration is finished and saved; once more stops at once\n".encode())
