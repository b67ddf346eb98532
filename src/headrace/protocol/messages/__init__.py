"""Requests and responses, one module per API key, each imported when its key is first asked for (`protocol.api`)."""
