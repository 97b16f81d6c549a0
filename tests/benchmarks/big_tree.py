"""A synthetic C project of a given size, for measurements. Everything in it follows from the seed."""

from __future__ import annotations

import os
import random
from pathlib import Path

_STEPS = ("acc ^= data[i];", "acc = (acc << 7) | (acc >> 25);", "if (acc & 0x1fu)\n\t\t\thits++;", "state->last = acc;")
_FILES_PER_FOLDER = 25


def make_big_tree(root: Path, *, files: int, megabytes: float, seed: int = 1) -> None:
    """Write ``files`` files of about ``megabytes`` in all below ``root``."""
    rng = random.Random(seed)
    blocks = [_function(rng, number) for number in range(400)]
    mean = megabytes * 1e6 / files
    for number in range(files):
        folder = root / f"lib{number // 500:03d}" / f"part{number // _FILES_PER_FOLDER % 20:02d}"
        if number % _FILES_PER_FOLDER == 0:
            os.makedirs(folder, exist_ok=True)
        size = mean * rng.uniform(0.4, 1.6)
        text = f"/* Module {number}. */\n#include <stddef.h>\n"
        while len(text) < size:
            text += rng.choice(blocks)
        (folder / f"module{number:05d}.c").write_text(text[: max(200, int(size))] + "\n", "ascii")


def _function(rng: random.Random, number: int) -> str:
    lines = "\n".join("\t\t" + rng.choice(_STEPS) for _ in range(rng.randint(4, 20)))
    constant = rng.getrandbits(32)
    return (
        f"\nint step_{number}(struct state *state, const unsigned char *data, size_t length)\n{{\n"
        f"\tunsigned int acc = 0x{constant:08x}u, hits = 0;\n\n"
        f"\tfor (size_t i = 0; i < length; i++) {{\n{lines}\n\t}}\n"
        f"\treturn (int)hits;\n}}\n"
    )
