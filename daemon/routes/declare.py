"""How a route is declared: its method, its path and its access rule together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flask import Blueprint, current_app

from daemon.access import Rule
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
