"""Promise: nobody sees into, traces or signals the daemon, its helpers, or the other user's processes."""

from __future__ import annotations

import subprocess

import pytest

from tests.attack.target import Target

pytestmark = pytest.mark.users

LOOK = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
SYSCALL = {"pidfd_open": 434, "pidfd_getfd": 438}

def done(result):
    if result is None or result < 0: raise PermissionError
    return result

def steal_descriptor(pid):
    fd = done(libc.syscall(SYSCALL["pidfd_open"], pid, 0))
    for number in range(64):
        if libc.syscall(SYSCALL["pidfd_getfd"], fd, number, 0) >= 0: return number
    raise PermissionError

def read_memory(pid):
    buffer = ctypes.create_string_buffer(16)
    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
    local = Vector(ctypes.cast(buffer, ctypes.c_void_p), 16)
    remote = Vector(0x400000, 16)
    return done(libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))

WAYS = {
    "environ": lambda pid: open(f"/proc/{pid}/environ", "rb").read(),
    "maps": lambda pid: open(f"/proc/{pid}/maps", "rb").read() or done(-1),
    "mem": lambda pid: open(f"/proc/{pid}/mem", "rb"),
    "fd": lambda pid: os.listdir(f"/proc/{pid}/fd"),
    "cwd": lambda pid: os.readlink(f"/proc/{pid}/cwd"),
    "root": lambda pid: os.listdir(f"/proc/{pid}/root/"),
    "exe": lambda pid: os.readlink(f"/proc/{pid}/exe"),
    "stack": lambda pid: open(f"/proc/{pid}/stack").read(),
    "syscall": lambda pid: open(f"/proc/{pid}/syscall").read(),
    "ptrace": lambda pid: done(libc.ptrace(16, pid, 0, 0)),
    "seize": lambda pid: done(libc.ptrace(0x4206, pid, 0, 0)),
    "descriptor": steal_descriptor,
    "memory": read_memory,
    "stop": lambda pid: os.kill(pid, signal.SIGSTOP),
    "terminate": lambda pid: os.kill(pid, signal.SIGTERM),
    "kill": lambda pid: os.kill(pid, signal.SIGKILL),
    "priority": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19),
    "oom": lambda pid: open(f"/proc/{pid}/oom_score_adj", "w").write("1000"),
    "limits": lambda pid: done(libc.prlimit(pid, 7, ctypes.byref((ctypes.c_ulong * 2)(4, 4)), None)),
}
for pid in map(int, sys.argv[2:]):
    try: print("ALLOWED", WAYS[sys.argv[1]](pid))
    except OSError: print("refused")
"""
WAYS = [
    "environ", "maps", "mem", "fd", "cwd", "root", "exe", "stack", "syscall", "ptrace", "seize", "descriptor", "memory",
    "stop", "terminate", "kill", "priority", "oom", "limits",
]  # fmt: skip


@pytest.fixture(scope="module")
def look(target: Target) -> str:
    path = target.root / "look.py"
    path.write_text(LOOK)
    return f"/usr/bin/python3 -I -S {path}"


@pytest.mark.parametrize("way", WAYS)
def test_the_daemon_is_out_of_the_agents_reach(target: Target, look: str, way: str) -> None:
    text = target.agent(f"{look} {way} {target.daemon.process.pid}")
    assert "refused" in text and "ALLOWED" not in text


@pytest.mark.parametrize("way", WAYS)
def test_the_daemon_is_out_of_a_builds_reach(target: Target, look: str, way: str) -> None:
    text = target.runner(f"{look} {way} {target.daemon.process.pid}")
    assert "refused" in text and "ALLOWED" not in text


def test_a_build_does_not_reach_the_agents_processes_nor_the_agent_those_of_a_build(target: Target, look: str) -> None:
    victim = subprocess.Popen(["/bin/sleep", "60"], user=target.users.agent.uid, group=target.users.agent.gid)
    try:
        text = target.runner("\n".join(f"{look} {way} {victim.pid}" for way in WAYS if way not in ("priority",)))
        assert text.count("refused") == len(WAYS) - 1 and "ALLOWED" not in text
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_no_process_shows_a_hidden_path_or_a_command_of_ours(target: Target) -> None:
    text = target.agent("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ps axww -o args 2>/dev/null")
    assert str(target.bench) not in text and "results" not in text


def test_shell_and_build_inherit_no_descriptor(target: Target) -> None:
    for text in (target.agent("ls -l /proc/self/fd"), target.runner("ls -l /proc/self/fd")):
        assert str(target.root) not in text.replace(str(target.source), "").replace("/runner/", "/"), text
        assert "socket:" not in text and "eventpoll" not in text


def test_the_environment_holds_only_what_is_promised(target: Target) -> None:
    text = target.agent("env; cat /proc/$PPID/environ | tr '\\0' '\\n'")
    shown = {word.split("=")[0] for word in text.split("\\n") if word.startswith("SSE_")}
    assert shown <= {"SSE_DAEMON_SOCKET", "SSE_ARCHIVE", "SSE_DIFFICULTY"}
    assert "SSE_" not in target.runner("env")


def test_no_new_privileges_hold_everywhere(target: Target) -> None:
    for text in (target.agent("grep NoNewPrivs /proc/self/status"), target.runner("grep NoNewPrivs /proc/self/status")):
        assert "NoNewPrivs:\\t1" in text


def test_the_kernels_log_and_tracing_are_closed(target: Target) -> None:
    text = target.agent("cat /proc/kcore | head -c 10; cat /sys/kernel/debug/* /sys/kernel/tracing/trace; bpftool prog")
    assert "200" in text
