"""What every test shares: users, and a look for what a test left behind. tests/support/patched.py ran before this."""

from tests.support.leaks import leak_check, pytest_collection_finish
from tests.support.users import TestUsers, pytest_runtest_setup, test_users

__all__ = ["TestUsers", "leak_check", "pytest_collection_finish", "pytest_runtest_setup", "test_users"]
