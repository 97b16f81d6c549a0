"""The kernel's key calls (add_key, request_key, keyctl), taken from a process and from all that it will start.

Keys outlive the processes of a user, and their owner can take even from root the right to remove them. So nobody who
runs hostile code may make any. To a program it is as if the kernel had no keys.

Runs as: a child of the daemon's between fork and exec.
Distrusts: the program it is about to become: no program can take the filter off, or call in another way (the 32-bit
  calls and x32 are in it).
Promises: after ``forbid_keys`` each of the three calls fails with ENOSYS.
Does not promise: anything on machines that are not in the table.
Checked by: tests/system/test_accounts.py, tests/attack/test_left_for_grading.py.
"""

from __future__ import annotations

import ctypes
import errno

from shell.errors import AccountError

_X32 = 0x40000000
# Of each machine the number that the kernel knows it by (linux/audit.h), and its three calls.
_CALLS = {
    0xC000003E: (248, 249, 250, _X32 | 248, _X32 | 249, _X32 | 250),  # x86_64
    0x40000003: (286, 287, 288),  # i386
    0xC00000B7: (217, 218, 219),  # aarch64
    0x40000028: (309, 310, 311),  # arm
    0xC00000F3: (217, 218, 219),  # riscv64
}
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_OFFSET, _MACHINE_OFFSET = 0, 4
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | errno.ENOSYS


class _Instruction(ctypes.Structure):
    """struct sock_filter."""

    _fields_ = (
        ("code", ctypes.c_ushort),
        ("if_true", ctypes.c_ubyte),
        ("if_false", ctypes.c_ubyte),
        ("operand", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def _block(machine: int, calls: tuple[int, ...]) -> list[_Instruction]:
    """Decides about a call of one machine; the next block about those of others."""
    ending = [_Instruction(_RETURN, 0, 0, _ALLOW), _Instruction(_RETURN, 0, 0, _FAIL)]
    tests = [_Instruction(_JUMP_IF_EQUAL, len(calls) - position, 0, number) for position, number in enumerate(calls)]
    body = [_Instruction(_LOAD, 0, 0, _NUMBER_OFFSET), *tests, *ending]
    return [
        _Instruction(_LOAD, 0, 0, _MACHINE_OFFSET),
        _Instruction(_JUMP_IF_EQUAL, 0, len(body), machine),
        *body,
    ]


def _filter() -> _Program:
    instructions = [step for machine, calls in _CALLS.items() for step in _block(machine, calls)]
    instructions.append(_Instruction(_RETURN, 0, 0, _ALLOW))
    return _Program(len(instructions), (_Instruction * len(instructions))(*instructions))


# Made here, not in the child: between fork and exec there is as little to do as possible.
_FILTER = _filter()
_libc = ctypes.CDLL(None, use_errno=True)


def forbid_keys() -> None:
    """Forbid them for good; AccountError when the kernel refuses. The process must have ``no_new_privs`` set."""
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_FILTER), 0, 0) != 0:
        raise AccountError(f"the kernel takes no seccomp filter: {errno.errorcode.get(ctypes.get_errno())}")
