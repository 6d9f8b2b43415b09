"""top_terminal.py q|interrupt|term|suspend COMMAND...: runs a command that draws on a terminal, ends it
in that way once it has drawn twice, and checks that it leaves the terminal as it was."""
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

ENTER, LEAVE = b"\033[?1049h", b"\033[?1049l"
ROWS, COLUMNS = 24, 80


def fail(text, seen):
    sys.exit(f"{text}; on the terminal: {seen!r}")


def read_until(terminal, seen, done, seconds):
    end = time.monotonic() + seconds
    while not done(seen) and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                more = os.read(terminal, 65536)
            except OSError:  # the other side is closed
                return seen
            if not more:
                return seen
            seen += more
    return seen


def main():
    how, command = sys.argv[1], sys.argv[2:]
    terminal, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    before = termios.tcgetattr(slave)
    child = os.fork()
    if child == 0:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for fd in (0, 1, 2):
            os.dup2(slave, fd)
        os.environ["TERM"] = "xterm"
        os.environ.pop("NO_COLOR", None)
        os.execv(command[0], command)
    seen = read_until(terminal, b"", lambda s: s.count(b"\033[H") >= 2, 20)
    if not seen.startswith(ENTER) or seen.count(b"\033[H") < 2:
        fail("it did not draw twice", seen)
    if b"ATS0" not in seen or b"\033[1m" not in seen:
        fail("no table in colours", seen)
    if termios.tcgetattr(slave)[3] & termios.ECHO:
        fail("keys are echoed", seen)
    if LEAVE in seen:
        fail("it left too early", seen)
    # as many lines as there are rows, or fewer
    last = seen.rsplit(b"\033[H", 1)[0].rsplit(b"\033[H", 1)[1]
    if last.count(b"\n") >= ROWS:
        fail("it scrolls", last)
    leaves = 1
    if how == "suspend":  # Ctrl-Z, and on again
        os.write(terminal, b"\x1a")
        seen = read_until(terminal, seen, lambda s: LEAVE in s, 10)
        status = os.waitpid(child, os.WUNTRACED)[1]
        if not os.WIFSTOPPED(status) or termios.tcgetattr(slave) != before:
            fail(f"Ctrl-Z: status {status}", seen)
        os.kill(child, signal.SIGCONT)
        seen = read_until(terminal, seen, lambda s: s.count(ENTER) == 2 and s.endswith(b"\033[J"), 10)
        leaves = 2
        os.write(terminal, b"q")
    elif how == "q":
        os.write(terminal, b"xq")
    elif how == "interrupt":
        os.write(terminal, b"\x03")
    else:
        os.kill(child, signal.SIGTERM)
    seen = read_until(terminal, seen, lambda s: s.count(LEAVE) == leaves, 10)
    if not seen.rstrip().endswith(LEAVE) or seen.count(LEAVE) != leaves:
        fail("it did not leave the other screen", seen)
    status = os.waitpid(child, 0)[1]
    if termios.tcgetattr(slave) != before:
        fail("the terminal's settings are others", seen)
    if how == "term":
        good = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
    else:
        good = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
    if not good:
        fail(f"it ended with status {status}", seen)


main()
