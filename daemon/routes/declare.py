"""How a route is declared (method, path and access rule together), and what every route may ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flask import Blueprint, current_app, request

from daemon.access import Kind, Rule
from daemon.connection import Client, UnknownClient
from daemon.http_handler import CLIENT_KEY, LISTENER_KEY
from daemon.services import Services

_View = TypeVar("_View", bound=Callable[..., Any])


def route(blueprint: Blueprint, method: str, path: str, rule: Rule) -> Callable[[_View], _View]:
    """Serve ``method path`` with the decorated view, to whom ``rule`` allows."""

    def declare(view: _View) -> _View:
        view.access_rule = rule  # type: ignore[attr-defined]
        blueprint.add_url_rule(path, view_func=view, methods=[method])
        return view

    return declare


def rule_of(view: Callable[..., Any]) -> Rule | None:
    """The rule a view was declared with; None for a view that has none, which nobody may use."""
    rule = getattr(view, "access_rule", None)
    return rule if isinstance(rule, Rule) else None


def services() -> Services:
    """The services of the app that handles the current request."""
    found: Services = current_app.extensions["ssebench"]
    return found


def listener_kind() -> Kind:
    """The kind of the listener that the current request came in on; unknown ones count as the agent's."""
    kind = request.environ.get(LISTENER_KEY)
    return kind if isinstance(kind, Kind) else Kind.HTTP


def client() -> Client:
    """Whoever waits for the answer to the current request."""
    found: Client = request.environ.get(CLIENT_KEY) or UnknownClient()
    return found
