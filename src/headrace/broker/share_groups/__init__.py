"""What share groups read: share fetches, their sessions, and the states of partitions that this broker leads."""
