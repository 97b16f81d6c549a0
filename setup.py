"""Packages, dependencies and console scripts of ssebench-daemon."""

import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "([^"]+)"', (HERE / "sse" / "version.py").read_text("utf-8"), re.M)
assert VERSION is not None, "sse/version.py must define __version__"

# What code in the agent's process needs: nothing but an HTTP client.
SDK = [
    "httpx>=0.27,<1",  # HTTP over Unix sockets, for the SDK
]

# What the program inside the task container needs on top.
DAEMON = [
    "Flask>=3.1,<3.2",  # routes, requests, errors
    "gevent>=26,<27",  # one process serves three sockets and waits for children
    "h11>=0.16,<1",  # reads requests strictly
    "pexpect>=4.9,<4.10",  # the persistent bash on its pty
    "marshmallow>=4,<5",  # every body in and out, and the task config
    "PyYAML>=6,<7",  # the task config and conf/daemon.yaml
]

# What the tests, the demo and the linters need on top.
TEST = [
    "pytest>=9,<10",
    "WebTest>=3,<4",  # drives the Flask app without a socket
    "hypothesis>=6.100,<7",  # property-based tests of capture, shell and prompt
    "schemathesis>=4,<5",  # fuzzes the live API from its OpenAPI description
    "jsonschema>=4.20,<5",  # checks answers and exported schemas
    "markdown-it-py>=4,<5",  # reads the prompt back as CommonMark
    "rich>=14,<16",  # tables of the demo and the benchmarks
    "mypy>=2,<3",
    "ruff>=0.17,<0.18",  # one minor version: its formatting is part of the lint
    "types-gevent",
    "types-greenlet",
    "types-PyYAML",
    "types-pexpect",
]

setup(
    name="ssebench-daemon",
    version=VERSION.group(1),
    description="Serves, runs and grades one vulnerability-repair task inside its container",
    python_requires=">=3.10",
    packages=["conf", "daemon", "daemon.routes", "grading", "shell", "sse", "sse.tools", "tasks"],
    package_data={
        "conf": ["*.yaml", "*.rc"],
        "daemon": ["openapi.yaml"],
        "sse": ["py.typed"],
    },
    install_requires=SDK,
    extras_require={"daemon": DAEMON, "test": DAEMON + TEST},
    entry_points={
        "console_scripts": [
            "ssebench-daemon = daemon.__main__:main",
            "ssebench-evaluate = grading.evaluator:main",
            "ssebench = tasks.command:main",
        ]
    },
)
