"""A pytest plugin that is loaded before all others (see pyproject.toml): some of those import ssl, which gevent must
have patched by then."""

from daemon.patching import patch

patch()
