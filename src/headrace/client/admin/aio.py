"""`headrace.aio.Admin`: administration that is awaited."""

from headrace.client.admin import AsyncAdmin as Admin

__all__ = ["Admin"]
