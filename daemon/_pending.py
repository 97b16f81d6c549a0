"""Temporary stand-ins until the real modules land; removed then."""

from __future__ import annotations

import os

from shell.command import CommandResult, run_command
from shell.processes import end_processes


class BashSession:
    def __init__(self, account, source, environment, *, limit_bytes, timeout_s, rc_path):
        self.a, self.s, self.e, self.l = account, source, environment, limit_bytes

    def execute(self, command, *, timeout_s, stop):
        return run_command(
            ["/bin/bash", "-c", command],
            account=self.a,
            cwd=self.s,
            env=self.e,
            limit_bytes=self.l,
            timeout_s=timeout_s,
            stop=stop,
        )

    def close(self):
        pass


def shell_environment(account, base, **more):
    return {"PATH": os.environ["PATH"], "HOME": account.home}


class Bencher:
    def __init__(self, *a, **k):
        pass

    def start(self): ...
    def new_session(self): ...
    def close(self): ...
    def build(self, *, grading, stop):
        return CommandResult(0, b"built\n", b"")

    def run_poc(self, poc, *, stop):
        return CommandResult(-1, b"", b"no build\n")

    def function_test(self, *, grading, stop):
        return CommandResult(0, b"", b"")

    intent_test = function_test


class AgentPhase:
    def __init__(self, state, agent, closed_paths):
        self.state, self.agent, self.ended = state, agent, state.phase_ended()

    def end(self):
        if not self.ended:
            self.state.mark_phase_ended()
            self.ended = True
        end_processes(self.agent)


class Capture:
    def __init__(self, *a):
        pass

    def start(self): ...
    def diff(self):
        return b""

    def files(self):
        return []

    def close(self): ...


class Submission:
    def __init__(self, *a):
        pass

    def prepare(self): ...
    def final_diff(self):
        return b""


def check_single_commit(source, agent): ...
