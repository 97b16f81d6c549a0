"""First of all gevent patches; then what every test shares: users, and a look for what a test left behind."""

from daemon.patching import patch

patch()

from tests.support.leaks import leak_check  # noqa: F401
from tests.support.users import TestUsers, pytest_runtest_setup, test_users  # noqa: F401
