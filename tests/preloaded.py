"""A process that has imported what pages need, and forks for each program that a page starts: imports take seconds.

`python -m tests.preloaded SOCKET MODULE…` serves, and says `ready`. `python tests/preloaded.py SOCKET WORDS…` stands in a page for
`python WORDS…`: it hands over its arguments, directory, environment and standard files, and ends as the program ends. Who kills it
kills the program.

Invariant: a program runs in a process of its own, with its own environment, and ends as any process of Python does.

Not promised: that nothing was imported before; a test of what is imported starts Python itself.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys

FILES = (0, 1, 2)
MOST = 1 << 20


def ask(place: str, words: list[str]) -> int:
    """Have a program run, and return its exit status."""
    order = json.dumps({"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(place)
        socket.send_fds(line, [len(order).to_bytes(4, "big")], FILES)
        line.sendall(order)
        answer = line.recv(4)
    return int.from_bytes(answer, "big", signed=True) if len(answer) == 4 else 1


def serve(place: str) -> int:
    """Serve until the standard input is closed. Returns in a child, too: with the program's exit status."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen()
    told, tells = os.pipe()
    os.set_blocking(tells, False)
    signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting = selectors.DefaultSelector()
    for one in (0, listening, told):
        waiting.register(one, selectors.EVENT_READ)
    children: dict[int, socket.socket] = {}
    print("ready", flush=True)
    while True:
        for key, _ in waiting.select():
            if key.fileobj == 0:
                return 0
            if key.fileobj == told:
                os.read(told, MOST)
                _answer(children, waiting)
            elif key.fileobj is listening:
                line, _ = listening.accept()
                pid, order, files = _begin(line)
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    waiting.close()
                    for other in (listening, line, *children.values()):
                        other.close()
                    return run(order, files)
                children[pid] = line
                waiting.register(line, selectors.EVENT_READ, pid)
            elif key.data in children:  # whoever asked is gone
                waiting.unregister(key.fileobj)
                os.kill(key.data, signal.SIGKILL)


def _begin(line: socket.socket) -> tuple[int, dict[str, object], list[int]]:
    length, files, _, _ = socket.recv_fds(line, 4, len(FILES))
    text = b""
    while len(text) < int.from_bytes(length, "big"):
        text += line.recv(MOST)
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        return pid, {}, []
    return 0, json.loads(text), files


def _answer(children: dict[int, socket.socket], waiting: selectors.BaseSelector) -> None:
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            continue
        line = children.pop(pid)
        if line in [key.fileobj for key in waiting.get_map().values()]:
            waiting.unregister(line)
        code = os.waitstatus_to_exitcode(status)
        try:
            line.sendall(code.to_bytes(4, "big", signed=True))
        except BrokenPipeError:
            pass
        line.close()


def run(order: dict[str, object], files: list[int]) -> int:
    """Be the program; return its exit status."""
    import runpy
    import traceback

    from exactness.forked import take

    words, environment = order["words"], order["environment"]
    assert isinstance(words, list) and isinstance(environment, dict)
    take(files)
    os.chdir(str(order["folder"]))
    os.environ.clear()
    os.environ.update(environment)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 - told as Python tells it
        traceback.print_exc()
        return 1
    return 0


def main() -> int:
    place, *words = sys.argv[1:]
    if __package__ != "tests":  # a file by itself
        return ask(place, words)
    from importlib import import_module

    from exactness.forked import warm_up

    for name in words:
        import_module(name)
    if "torch" in sys.modules:
        warm_up()
    return serve(place)


if __name__ == "__main__":
    sys.exit(main())
