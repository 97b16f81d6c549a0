"""How many bytes of answers may wait for clients that do not read them.

Distrusts: clients that ask for output and never take it: each such answer stays in memory until its client is given up.
Checked by: tests/unit/daemon/test_contract.py.
"""

from __future__ import annotations

from daemon.errors import RequestError


class Budget:
    """A number of bytes to hand out."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size: int) -> None:
        """Use ``size`` bytes until ``give_back``; a RequestError when others use too many already.

        A single large answer always passes: what one may hold is limited elsewhere.
        """
        if self.used_bytes and self.used_bytes + size > self._limit_bytes:
            raise RequestError("too many large answers wait to be read; read them, or close their connections")
        self.used_bytes += size

    def give_back(self, size: int) -> None:
        """The bytes are gone."""
        self.used_bytes -= size
