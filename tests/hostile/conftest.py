"""What every attack watches: that nothing inside the broker failed unnoticed."""

from tests.broker.conftest import failures

__all__ = ["failures"]
