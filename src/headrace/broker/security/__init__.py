"""Who is at the other end of a connection: TLS, logins, users and their tokens."""
